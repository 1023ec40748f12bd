"""Kernel launches, and dry runs that find the kernels of a step without launching them.

    normally      launch(kernel, grid)(...)    the kernel runs
    in a dry run  launch(kernel, grid)(...)    `take` is called; tensors are on `meta`, in place of
                                               those on a card
                  note_call(function, ...)     `take_call` is called: a library's kernel would run

A kernel's variant depends on the types of its arguments, on which of them are multiples of 16, and
on its constants: tensors on `meta`, which have no memory, provide all of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

Take = Callable[..., None]  # called with (kernel, grid, *arguments, **options)
TakeCall = Callable[..., None]  # called with (function, *arguments, **options)


@dataclass(frozen=True, slots=True)
class Card:
    """The properties of a GPU that decide how kernels are built and split."""

    cores: int  # SMs
    is_hopper: bool


@dataclass(frozen=True, slots=True)
class _DryRun:
    card: Card
    take: Take
    take_call: TakeCall | None


_current: ContextVar[_DryRun | None] = ContextVar("dry_run", default=None)


@contextmanager
def dry_running(card: Card, take: Take, take_call: TakeCall | None = None) -> Iterator[None]:
    """On this thread, within `with`, nothing is launched and `meta` stands for such a card."""
    token = _current.set(_DryRun(card, take, take_call))
    try:
        yield
    finally:
        _current.reset(token)


def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., Any]:
    """Every kernel of the engine is launched by this: `kernel[grid]`, or `take` in a dry run. The
    call returns the compiled kernel, and None in a dry run."""
    dry_run = _current.get()
    if dry_run is None:
        launched: Callable[..., Any] = kernel[grid]
        return launched
    return partial(dry_run.take, kernel, grid)


def note_call(function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """In a dry run: in place of these tensors on `meta`, that function of a library would be called
    with such on a card."""
    dry_run = _current.get()
    if dry_run is not None and dry_run.take_call is not None:
        dry_run.take_call(function, *arguments, **options)


def card_of(device: torch.device) -> Card | None:
    """The card that tensors of that device are on; None for a CPU."""
    if device.type == "cuda":
        return _real(device)
    dry_run = _current.get()
    return dry_run.card if dry_run is not None and device.type == "meta" else None


@cache
def _real(device: torch.device) -> Card:
    facts = torch.cuda.get_device_properties(device)
    return Card(cores=int(facts.multi_processor_count), is_hopper=facts.major == 9)
