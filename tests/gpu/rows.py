"""Rows for tests of a whole engine on a card: each with pages of its own, run a step ahead."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from twolane.engine.config import EngineConfig
from twolane.engine.cuda.engine import CudaEngine
from twolane.engine.step import Engine, Page, RowWork, SampledToken, Step
from twolane.params import SamplingParams

PAGES_A_ROW = 16


def engine_of(model: Path, **options: Any) -> CudaEngine:
    from twolane.engine.cuda.startup.load import load_cuda_engine

    settings: dict[str, Any] = {"n_pages": 256, "exact": False, **options}
    return load_cuda_engine(EngineConfig(model_dir=model, **settings))


class Row:
    """One row with a run of pages of its own, and how far it is."""

    def __init__(self, name: int, prompt: Sequence[int], params: SamplingParams) -> None:
        self.name, self.prompt, self.params = name, list(prompt), params
        self.pages = [Page(name * PAGES_A_ROW + i) for i in range(PAGES_A_ROW)]
        self.tokens = list(prompt)
        self.found: list[SampledToken] = []
        self.done = 0  # computed, or on their way
        self.pending = False

    def work(self, chunk_tokens: int) -> RowWork:
        n_tokens = len(self.tokens) + self.pending
        n_new = min(chunk_tokens, n_tokens - self.done)
        return RowWork(
            self.name, self.tokens, self.done, n_new, self.pages, len(self.prompt), self.params,
            self.done + n_new == n_tokens, follows=self.pending,
        )  # fmt: skip


def answer_all(
    engine: Engine, rows: list[Row], n: int, *, chunk: Callable[[], int], ahead: bool = True
) -> None:
    """Run the rows together, a step ahead of what is known, until each has n tokens."""
    before: tuple[Step, list[RowWork]] | None = None
    by_name = {row.name: row for row in rows}
    while True:
        work = [row.work(chunk()) for row in rows if len(row.found) + row.pending < n]
        step = engine.submit(work) if work else None
        for share in work:
            row = by_name[share.row]
            row.done += share.n_new
        if before is not None:
            _take(before, by_name)
        for share in work:
            by_name[share.row].pending = share.sample
        before = (step, work) if step is not None else None
        if before is not None and not ahead:
            _take(before, by_name)
            before = None
        if before is None and all(len(row.found) == n for row in rows):
            return


def _take(step: tuple[Step, list[RowWork]], by_name: dict[int, Row]) -> None:
    for result in step[0].result():
        assert not result.error, result.error
        row = by_name[result.row]
        row.found += result.tokens
        row.tokens += [token.token for token in result.tokens]
        row.pending = False


def prompt_of(length: int) -> list[int]:
    source = random.Random(length)
    return [source.randrange(3, 259) for _ in range(length)]


def params_of(i: int) -> SamplingParams:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.9, "top_k": 40},
        {"temperature": 1.0, "repetition_penalty": 1.2, "min_p": 0.01},
    ]
    return SamplingParams(seed=i, top_logprobs=3, **kinds[i % len(kinds)])
