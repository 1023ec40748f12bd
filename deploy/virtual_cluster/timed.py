"""Workers of a virtual cluster whose steps take as long as they did on a GPU.

The engine computes nothing: its steps last as long as `Hardware`'s costs say, and vary by a few
percent.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from twolane.deploy.controller.priors import Hardware
from twolane.deploy.virtual_cluster.cluster import Shape
from twolane.engine.fake import FakeEngine, FakeEngineConfig
from twolane.engine.step import RowResult, RowWork, SampledToken
from twolane.prefill_worker.config import PrefillConfig
from twolane.router.config import AdmissionConfig

PAGE_TOKENS = 64
VOCABULARY = 65_536
ANSWER_TOKEN = 7  # all that the engine answers
NOISE = 0.03  # standard deviation of a step's time, in share
SUBMIT_S = 0.0015  # from the plan of a step until the device has it


class PricedEngine(FakeEngine):
    """Steps cost what `hardware` says. Tokens mean nothing."""

    def __init__(self, hardware: Hardware, n_pages: int, seed: int) -> None:
        super().__init__(
            FakeEngineConfig(
                n_pages=n_pages,
                page_tokens=PAGE_TOKENS,
                max_context_tokens=65_536,
                vocab_size=VOCABULARY,
            )
        )
        self._hardware = hardware
        self._dice = random.Random(seed)

    def step_time_s(self, work: Sequence[RowWork]) -> float:
        prompts = [row for row in work if row.n_new > 1]
        rows = [row for row in work if row.n_new == 1]
        context = sum(row.start + 1 for row in rows)
        tokens = sum(row.n_new for row in prompts)
        squares = sum((row.start + row.n_new) ** 2 - row.start**2 for row in prompts)
        step_s = self._hardware.step_s(tokens, squares, len(rows), context)
        return step_s * self._dice.lognormvariate(0.0, NOISE)

    def run(self, work: Sequence[RowWork]) -> list[RowResult]:
        return [
            RowResult(row.row, (SampledToken(ANSWER_TOKEN),)) if row.sample else RowResult(row.row)
            for row in work
        ]


def shape(
    hardware: Hardware,
    roles: Sequence[str],
    *,
    prefill: PrefillConfig | None = None,
    admission: AdmissionConfig | None = None,
) -> Shape:
    """Workers of that hardware, which pipeline their steps."""
    return Shape(
        roles=roles,
        n_pages=hardware.kv_tokens // PAGE_TOKENS,
        make_engine=lambda n_pages: PricedEngine(hardware, n_pages, seed=1),
        step_tokens=hardware.step_tokens,
        decode_rows=hardware.rows,
        steps_ahead=1,
        submit_s=SUBMIT_S,
        prefill=prefill or PrefillConfig(),
        admission=admission or AdmissionConfig(),
    )
