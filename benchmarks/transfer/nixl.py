"""NIXL's own write with nothing around it, with which the tcp and nixl transports are compared.

Both agents are as NIXL makes them by default, with their progress threads; descriptor lists are
prepared once; random pages go to random places. Requests have `post_bytes`, with up to eight in
flight, or there is one for everything (`post_bytes` 0). UCX uses only TCP, as its shared memory is
not a network.
"""

from __future__ import annotations

import os
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

_AHEAD = 8


def nixl_rounds(page_bytes: int, pool_bytes: int, n_rounds: int, post_bytes: int) -> list[float]:
    """The rate of each round in bytes per second, after a warm-up round."""
    context = get_context("spawn")
    here, there = context.Pipe()
    args = (page_bytes, pool_bytes, n_rounds, post_bytes, there)
    receiver, pipe = context.Pipe()
    ends = [
        context.Process(target=_receive, args=(page_bytes, pool_bytes, pipe), daemon=True),
        context.Process(target=_write, args=args, daemon=True),
    ]
    for end in ends:
        end.start()
    here.send(receiver.recv())
    rates: list[float] = here.recv()
    receiver.send("end")
    for end in ends:
        end.join()
    return rates


def _agent(name: str, page_bytes: int, pool: Any) -> Any:
    os.environ["UCX_TLS"] = "tcp"
    from nixl_cu13._api import nixl_agent

    agent = nixl_agent(name)
    agent.register_memory([(pool.ctypes.data, pool.nbytes, 0, "")], "DRAM")
    return agent


def _receive(page_bytes: int, pool_bytes: int, pipe: Connection) -> None:
    pool = np.zeros((pool_bytes // page_bytes, page_bytes), np.uint8)
    agent = _agent("receiver", page_bytes, pool)
    pipe.send((agent.get_agent_metadata(), pool.ctypes.data))
    pipe.recv()


def _write(
    page_bytes: int, pool_bytes: int, n_rounds: int, post_bytes: int, pipe: Connection
) -> None:
    rng = np.random.default_rng(1)
    n = pool_bytes // page_bytes
    pool = rng.integers(0, 256, (n, page_bytes), np.uint8)
    agent = _agent("sender", page_bytes, pool)
    metadata, address = pipe.recv()
    name = agent.add_remote_agent(metadata)
    lists = [
        agent.prep_xfer_dlist(
            owner, np.array([[at, page_bytes, 0, page_bytes, n]], np.uint64), "DRAM"
        )
        for owner, at in (("NIXL_INIT_AGENT", pool.ctypes.data), (name, address))
    ]
    step = post_bytes // page_bytes if post_bytes else n
    rates = []
    for _ in range(n_rounds + 1):
        src, dst = (rng.permutation(n).astype(np.int32) for _ in range(2))
        begun = time.perf_counter()
        under_way: list[Any] = []
        at = 0
        while at < n or under_way:
            while at < n and len(under_way) < _AHEAD:
                span = slice(at, at + step)
                request = agent.make_prepped_xfer("WRITE", lists[0], src[span], lists[1], dst[span])
                agent.transfer(request)
                under_way.append(request)
                at += step
            state = agent.check_xfer_state(under_way[0])
            assert state != "ERR"
            if state == "DONE":
                under_way.pop(0).release()
        rates.append(pool_bytes / (time.perf_counter() - begun))
    pipe.send(rates[1:])
