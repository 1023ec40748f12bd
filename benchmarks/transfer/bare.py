"""The baseline of the transports: the same copies and system calls with nothing around them.

memcpy    pages from random places to random places of one process
tcp       sendmsg of 16 random pages to recvmsg_into 16 random pages of another process
unix      the same over a unix socket
shm       memcpy into memory that another process has mapped
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from twolane.kvtransfer.transports.common.addresses import listen_tcp, listen_unix, socket_to, widen
from twolane.kvtransfer.transports.common.shared_memory import create_pool_memory, map_peer_memory

Pool = npt.NDArray[np.uint8]
_BATCH_BYTES = 1 << 20  # of one system call


def bare_rounds(kind: str, page_bytes: int, pool_bytes: int, n_rounds: int) -> list[float]:
    """The rate of each round in bytes per second, after a warm-up round."""
    shape = (pool_bytes // page_bytes, page_bytes)
    source = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    if kind in ("memcpy", "shm"):
        memory = create_pool_memory(pool_bytes, "benchmark") if kind == "shm" else None
        target = np.zeros(shape, np.uint8)
        if memory is not None:
            target = map_peer_memory(memory.address).reshape(shape)
        rates = _timed(lambda: _copy(source, target), pool_bytes, n_rounds)
        if memory is not None:
            memory.close()
        return rates
    context = get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=_receive, args=(kind, shape, n_rounds + 1, there), daemon=True)
    child.start()
    stream, address = socket_to(kind, here.recv())
    stream.setblocking(True)
    stream.connect(address)  # type: ignore[arg-type]  # str or tuple, by family
    rates = _timed(lambda: _send(stream, source, here), pool_bytes, n_rounds)
    child.join()
    stream.close()
    return rates


def _timed(work: Callable[[], None], n_bytes: int, n_rounds: int) -> list[float]:
    rates = []
    for _ in range(n_rounds + 1):
        begun = time.perf_counter()
        work()
        rates.append(n_bytes / (time.perf_counter() - begun))
    return rates[1:]


def _copy(source: Pool, target: Pool) -> None:
    src, dst = _places(len(source), 2), _places(len(target), 3)
    for s, d in zip(src, dst, strict=True):
        target[d] = source[s]


def _send(stream: socket.socket, source: Pool, pipe: Connection) -> None:
    for views in _batches(source, 2):
        while views:
            _consume(views, stream.sendmsg(views))
    assert pipe.recv() == "landed"


def _receive(kind: str, shape: tuple[int, int], n_rounds: int, pipe: Connection) -> None:
    listener, address = listen_unix() if kind == "unix" else listen_tcp("127.0.0.1", "")
    target = np.ones(shape, dtype=np.uint8)
    pipe.send(address)
    stream, _ = listener.accept()
    widen(stream)
    for _ in range(n_rounds):
        for views in _batches(target, 3):
            while views:
                _consume(views, stream.recvmsg_into(views)[0])
        pipe.send("landed")
    stream.close()
    listener.close()


def _batches(pool: Pool, seed: int) -> list[list[Any]]:
    size, flat = pool.shape[1], pool.data.cast("B")
    views = [flat[page * size : (page + 1) * size] for page in _places(len(pool), seed)]
    step = max(1, _BATCH_BYTES // size)
    return [views[at : at + step] for at in range(0, len(views), step)]


def _places(n: int, seed: int) -> list[int]:
    places: list[int] = np.random.default_rng(seed).permutation(n).tolist()
    return places


def _consume(views: list[Any], n_bytes: int) -> None:
    while n_bytes:
        if n_bytes < len(views[0]):
            views[0] = views[0][n_bytes:]
            return
        n_bytes -= len(views.pop(0))
