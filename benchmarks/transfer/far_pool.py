"""A GPU pool in a process of its own, which lives as long as the context manager is open."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext

from benchmarks.transfer.pools import open_pool


@contextmanager
def killable_pool(
    device: str,
    n_pages: int,
    page_bytes: int,
    parts: int = 1,
    kind: str = "cuda",
    context: BaseContext | None = None,
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The pool's exported address, and a function that kills its process in mid-use. `device` names
    the GPU as CUDA_VISIBLE_DEVICES does. `context`: how to start the process; "spawn" by
    default."""
    context = context or get_context("spawn")
    here, there = context.Pipe()
    args = (there, device, n_pages, page_bytes, parts, kind)
    child = context.Process(target=_hold, args=args, daemon=True)  # type: ignore[attr-defined]
    child.start()
    try:
        yield here.recv(), child.kill
    finally:
        with contextlib.suppress(BrokenPipeError):  # it was killed
            here.send("end")
        child.join()


@contextmanager
def far_pool(device: str, n_pages: int, page_bytes: int, parts: int = 1) -> Iterator[str]:
    """The pool's exported address."""
    with killable_pool(device, n_pages, page_bytes, parts) as (address, _):
        yield address


def _hold(
    pipe: Connection, device: str, n_pages: int, page_bytes: int, parts: int, kind: str
) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = device
    pool = open_pool(kind, n_pages, page_bytes, fill=False, parts=parts)
    pipe.send(pool.transfers.export())  # type: ignore[union-attr]
    pipe.recv()
    pool.close()
