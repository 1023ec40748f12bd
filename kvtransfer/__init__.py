"""Moving KV pages from prefill workers to decode workers: leases, tickets, plans, transports.

    Sender, Receiver          the protocol; synchronous, no clock, no I/O  (send/, receive/)
    SenderDriver,
    ReceiverDriver            the thin asyncio edges around them           (driver.py of each)
    link/                     how two workers meet, and DONE by a datagram
    transports/               how bytes move: cuda_ipc, shm, unix, nixl, tcp, memory

Knows ids, layouts and bytes; knows nothing of models, engines and routers.
"""
