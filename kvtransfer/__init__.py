"""Moving KV pages from prefill workers to decode workers: leases, tickets, plans, transports.

    Sender, Receiver          the protocol; synchronous, no clock, no I/O  (sender.py, receiver.py)
    SenderDriver,
    ReceiverDriver            the thin asyncio edges around them           (*_driver.py)
    transports/               how bytes move: cuda_ipc, shm, unix, nixl, tcp, memory

Knows ids, layouts and bytes; knows nothing of models, engines and routers.
"""
