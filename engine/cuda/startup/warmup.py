"""Warms an engine up, while it is loaded and after.

kernels    dry run, compiled and loaded ----------> |
library    called as in the dry run --------------> |
weights    read, drawn --------> probed, pool ----> | passes of every expected kind -> ready
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from types import TracebackType

import torch

from twolane.engine.cuda.engine import CudaEngine
from twolane.engine.cuda.startup.blueprint import Blueprint
from twolane.engine.cuda.startup.dry_run import dry_run_launches, many_rows_from
from twolane.engine.cuda.startup.library_calls import LibraryCalls
from twolane.engine.cuda.startup.step_shapes import StepShapes
from twolane.engine.cuda.startup.warmup_passes import WarmupPasses
from twolane.engine.kernels.compile_ahead import (
    CompileAhead,
    each_variant_once,
    processes_here,
)
from twolane.engine.kernels.launch import Card, Take, card_of
from twolane.engine.kernels.loading import load_kernels_once
from twolane.engine.progress import PASSES, Progress, Readied

_NO_CARD = Card(cores=1, is_hopper=False)  # for tests; nothing is compiled for it


class Warmup:
    """The warm-up of one engine, for the steps that its config expects. Kernels are compiled within
    `with`; if an exception leaves it, those compiled so far stay in Triton's cache."""

    def __init__(
        self, blueprint: Blueprint, device: torch.device, progress: Progress | None
    ) -> None:
        load_kernels_once()
        config = blueprint.config
        self._blueprint = blueprint
        self._progress = progress
        self._expected = StepShapes(rows=config.ready_rows, tokens=config.ready_tokens)
        self._card = card_of(device) or _NO_CARD
        self._stack = ExitStack()
        self._library = LibraryCalls(device)
        self._ahead: CompileAhead | None = None
        if device.type == "cuda" and self._expected.any:
            processes = processes_here(shared_by=blueprint.shard.ranks)
            self._ahead = CompileAhead(
                self._dry_run, processes=processes, around=partial(torch.cuda.device, device)
            )

    def __enter__(self) -> Warmup:
        self._stack.callback(self._library.close)
        if self._ahead is not None:
            self._stack.enter_context(self._ahead)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def wait_for_kernels(self) -> None:
        """Wait until all are compiled and loaded. Raises the compiler's errors."""
        if self._ahead is not None:
            self._ahead.wait(partial(self._tell, "kernels"))
        self._library.wait()

    def make_passes(self, engine: CudaEngine) -> None:
        """Run the warm-up passes on the engine's stream; all ranks do. Does nothing if no steps are
        expected."""
        if not self._expected.any:
            return
        tall = many_rows_from(self._blueprint, self._expected, self._card)
        passes = WarmupPasses(engine, self._expected, many_rows_from=tall)
        for n, _ in enumerate(passes.run(), 1):
            self._tell(PASSES, n, len(passes))

    def _dry_run(self, take: Take) -> None:
        take = each_variant_once(take)
        dry_run_launches(self._blueprint, self._expected, self._card, take, self._library.take)

    def _tell(self, what: str, done: int, of: int) -> None:
        if self._progress is not None:
            self._progress(Readied(what, done, of))
