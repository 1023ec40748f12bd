"""What ranks do together while they compute: add up, and put side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist

_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # its name from 2.13 on


class Collective(Protocol):
    """One rank's end. All ranks call the same methods in the same order, with equal shapes and
    dtypes; what comes back is the same on every rank, bit for bit."""

    rank: int
    ranks: int
    waits: bool  # on the host, in each call: then it cannot be part of a CUDA graph

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, of x's shape and dtype. x may be overwritten."""
        ...

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """`[…, w]` of every rank -> `[…, ranks * w]`, in the order of the ranks."""
        ...


class Alone:
    """One rank: nothing is to be done."""

    rank = 0
    ranks = 1
    waits = False

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return x


class LibraryCollective:
    """Over torch's process group, which this process has joined: gloo or NCCL.

    With `in_order`, sums are taken in float32 in the order of the ranks and rounded once, so that
    an element's bits do not depend on what else is in the tensor. A library's own sum goes round
    a ring, and begins elsewhere for each part of it.
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
    """By way of the host, over gloo: for ranks that share a GPU, which NCCL refuses. Sums are in
    order."""

    waits = True

    def __init__(self) -> None:
        super().__init__(in_order=True)

    def _parts(self, x: torch.Tensor) -> list[torch.Tensor]:
        raw = x.cpu().contiguous().view(torch.uint8)  # gloo need not know the dtype
        return [part.view(x.dtype).to(x.device) for part in super()._parts(raw)]


def ordered_sum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """A new tensor: the parts added up in float32, first to last, and rounded to their dtype."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(parts[0].dtype)


def least(ranks: Collective, value: int, device: torch.device | str = "cpu") -> int:
    """The least of what the ranks give."""
    return int(ranks.all_gather(torch.tensor([value], device=device)).min())
