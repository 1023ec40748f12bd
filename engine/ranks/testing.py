"""Ranks as threads of one process: the double of a process group, for tests of their results.

with_ranks(2, lambda ranks: load_engine(config, ranks=ranks))     one result per rank, in order
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from twolane.engine.parallel.collective import Collective, ordered_sum

ResultT = TypeVar("ResultT")
PATIENCE_S = 60.0


class _Table:
    """Where ranks put tensors for each other."""

    def __init__(self, ranks: int) -> None:
        self.laid: list[torch.Tensor] = [torch.empty(0)] * ranks
        self.barrier = threading.Barrier(ranks, timeout=PATIENCE_S)


class ThreadCollective:
    """One rank's end. A rank that raises breaks the barrier, and so the others too."""

    waits = True

    def __init__(self, rank: int, table: _Table) -> None:
        self.rank = rank
        self.ranks = len(table.laid)
        self.n_calls = 0
        self._table = table

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return ordered_sum(self._exchange(x))

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._exchange(x), dim=-1)

    def abort(self) -> None:
        self._table.barrier.abort()

    def _exchange(self, x: torch.Tensor) -> list[torch.Tensor]:
        self.n_calls += 1
        table = self._table
        table.laid[self.rank] = x
        table.barrier.wait()
        taken = [part.clone() for part in table.laid]
        table.barrier.wait()
        return taken


def thread_ranks(ranks: int) -> list[ThreadCollective]:
    table = _Table(ranks)
    return [ThreadCollective(rank, table) for rank in range(ranks)]


def with_ranks(
    ranks: int | list[ThreadCollective], function: Callable[[Collective], ResultT]
) -> list[ResultT]:
    """Call `function` as every rank concurrently; raises the first error."""
    ends = thread_ranks(ranks) if isinstance(ranks, int) else ranks

    def run(end: ThreadCollective) -> ResultT:
        try:
            return function(end)
        except BaseException:
            end.abort()
            raise

    with ThreadPoolExecutor(len(ends)) as threads:
        futures = [threads.submit(run, end) for end in ends]
    errors = [e for e in (future.exception() for future in futures) if e is not None]
    for error in errors:  # a broken barrier is the consequence of another error
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]
