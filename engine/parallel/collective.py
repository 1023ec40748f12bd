"""Collective operations of ranks: all-reduce and all-gather."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist

_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # from 2.13 on


class Collective(Protocol):
    """One rank's end. All ranks call the same methods in the same order, with equal shapes and
    dtypes; the result is the same on every rank, bit for bit."""

    rank: int
    ranks: int
    waits: bool  # each call waits on the host, so it cannot be part of a CUDA graph

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, with x's shape and dtype. x may be overwritten."""
        ...

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """`[…, w]` of every rank -> `[…, ranks * w]`, in rank order."""
        ...


class SingleRank:
    """A single rank: every operation returns its input."""

    rank = 0
    ranks = 1
    waits = False

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return x


class LibraryCollective:
    """Uses torch's process group, which this process has joined: gloo or NCCL.

    With `in_order`, sums are taken in float32 in rank order and rounded once, so that an element's
    bits do not depend on the rest of the tensor. A library's own all-reduce uses a ring, which
    starts at a different rank for each part of the tensor.
    """

    waits = False

    def __init__(self, *, in_order: bool) -> None:
        self.rank = dist.get_rank()
        self.ranks = dist.get_world_size()
        self._in_order = in_order

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        if self._in_order:
            return ordered_sum(self._parts(x))
        dist.all_reduce(x)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._parts(x), dim=-1)

    def _parts(self, x: torch.Tensor) -> list[torch.Tensor]:
        held = x.new_empty(self.ranks * x.numel())
        _gather(held, x.contiguous().view(-1))
        return list(held.view(self.ranks, *x.shape).unbind(0))


class HostCollective(LibraryCollective):
    """Goes through the host, over gloo: for ranks that share a GPU, which NCCL refuses. Sums are in
    rank order."""

    waits = True

    def __init__(self) -> None:
        super().__init__(in_order=True)

    def _parts(self, x: torch.Tensor) -> list[torch.Tensor]:
        raw = x.cpu().contiguous().view(torch.uint8)  # as bytes, since gloo lacks some dtypes
        return [part.view(x.dtype).to(x.device) for part in super()._parts(raw)]


def ordered_sum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """A new tensor: the sum of the parts in float32, first to last, rounded to their dtype."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(parts[0].dtype)


def least(ranks: Collective, value: int, device: torch.device | str = "cpu") -> int:
    """The minimum over the ranks."""
    return int(ranks.all_gather(torch.tensor([value], device=device)).min())
