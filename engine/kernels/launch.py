"""Going through the launches of a step without making them: which kernels would it take?

    usually       launch(kernel, grid)(...)    the kernel runs
    rehearsing    launch(kernel, grid)(...)    `take` is told; tensors are on `meta`, and stand for
                                               those of a card

What a kernel is compiled for follows from the types of its arguments, from which of them are
multiples of 16, and from its constants: tensors on `meta`, which have no memory, have all that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

Take = Callable[..., None]  # of (kernel, grid, *arguments, **options)


@dataclass(frozen=True, slots=True)
class Card:
    """What decides how kernels are built and cut for a GPU."""

    cores: int  # multiprocessors
    is_hopper: bool


@dataclass(frozen=True, slots=True)
class _Rehearsal:
    card: Card
    take: Take


_current: ContextVar[_Rehearsal | None] = ContextVar("rehearsal", default=None)


@contextmanager
def rehearsing(card: Card, take: Take) -> Iterator[None]:
    """On this thread, until the end, nothing is launched and `meta` is such a card."""
    token = _current.set(_Rehearsal(card, take))
    try:
        yield
    finally:
        _current.reset(token)


def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
    """How every kernel of the engine is launched: `kernel[grid]`, or `take` in a rehearsal."""
    rehearsal = _current.get()
    if rehearsal is None:
        launched: Callable[..., None] = kernel[grid]
        return launched
    return partial(rehearsal.take, kernel, grid)


def card_of(device: torch.device) -> Card | None:
    """What tensors of that device are computed on; None for a CPU."""
    if device.type == "cuda":
        return _real(device)
    rehearsal = _current.get()
    return rehearsal.card if rehearsal is not None and device.type == "meta" else None


@cache
def _real(device: torch.device) -> Card:
    facts = torch.cuda.get_device_properties(device)
    return Card(cores=int(facts.multi_processor_count), is_hopper=facts.major == 9)
