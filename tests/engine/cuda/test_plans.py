"""Plans of decode rows: what they keep in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from twolane.engine.cuda.plans import DecodePlans
from twolane.engine.cuda.startup.step_shapes import StepShapes
from twolane.engine.kernels.attention.decode_plan import DecodePlan
from twolane.engine.model_files.architecture import read_architecture

PAGES = 64  # of the longest context
WINDOWS = (0, 100)


def plans_of(buckets: Iterable[int], model_dir: Path, *, exact: bool) -> list[DecodePlan]:
    plans = DecodePlans(
        read_architecture(model_dir),
        page_tokens=64, table_pages=PAGES, exact=exact, device=torch.device("cpu"),
    )  # fmt: skip
    return [plans.plan(rows, window) for rows in buckets for window in WINDOWS]


def partial_bytes(plans: Iterable[DecodePlan]) -> int:
    stores = [t.untyped_storage() for p in plans for t in (p.partial_out, p.partial_lse)]
    return sum({store.data_ptr(): store.nbytes() for store in stores}.values())


@pytest.mark.parametrize("exact", [True, False])
def test_plans_of_all_buckets_take_no_more_for_partial_answers_than_the_largest(
    exact: bool, model_dir: Callable[[str], Path]
) -> None:
    buckets = StepShapes(rows=256, tokens=2048).buckets
    plans = plans_of(buckets, model_dir("llama"), exact=exact)
    assert partial_bytes(plans) == partial_bytes(plans[:1])
    for plan in plans:
        assert len(plan.partial_out) == len(plan.partial_lse) == plan.max_items


def test_a_larger_plan_that_comes_later_leaves_the_memory_of_the_smaller_alone(
    model_dir: Callable[[str], Path],
) -> None:
    small, _, large, _ = plans_of([4, 16], model_dir("llama"), exact=True)
    assert len(small.partial_out) == 4 * PAGES // 16
    large.partial_out.fill_(1.0)
    assert not small.partial_out.any()
