"""Ranks of the GPU engine give what one gives: in the interpreter, over gloo."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from twolane.engine.config import EngineConfig
from twolane.engine.ranks.group import RankGroup
from twolane.engine.ranks.start import start_ranks
from twolane.engine.step import Engine, Page, RowWork, SampledToken
from twolane.engine.testing import write_random_model
from twolane.params import SamplingParams

pytest.importorskip("triton")

MEMBER = (sys.executable, str(Path(__file__).with_name("interpreted_member.py")))
PROMPT = [(37 * i) % 250 + 3 for i in range(70)]
PLAIN = SamplingParams(temperature=0.7, seed=3, top_logprobs=2)
PENALISED = SamplingParams(
    temperature=0.9, seed=4, top_p=0.9, top_k=30, repetition_penalty=1.3, frequency_penalty=0.2,
    min_tokens=2, logit_bias={9: 2.0}, top_logprobs=2,
)  # fmt: skip


@contextmanager
def group(config: EngineConfig, ranks: int) -> Iterator[RankGroup]:
    made = start_ranks(replace(config, tensor_parallel=ranks), command=MEMBER)
    try:
        yield made
    finally:
        made.close()


def steps_ahead(engine: Engine) -> list[SampledToken]:
    """Two rows: a prompt in two chunks, then decode steps that follow samples not yet seen."""
    found: list[SampledToken] = []
    rows = [(PROMPT, PLAIN, [Page(1), Page(2)]), (PROMPT[:20], PENALISED, [Page(5)])]

    def share(i: int, start: int, n_new: int, *, follows: bool = False) -> RowWork:
        tokens, params, pages = rows[i]
        sample = start + n_new == len(tokens) + follows
        return RowWork(i, tokens, start, n_new, pages, len(tokens), params, sample, follows=follows)

    first = engine.submit([share(0, 0, 40)])
    second = engine.submit([share(0, 40, 30), share(1, 0, 20)])
    third = engine.submit([share(0, 70, 1, follows=True), share(1, 20, 1, follows=True)])
    for step in (first, second, third):
        for result in step.result():
            assert not result.error, result.error
            found += result.tokens
    assert len(found) == 4
    return found


# The last two cover the first between them:
# pages that are not quantised, products that are not exact.
@pytest.mark.parametrize(
    ("kv_heads", "exact", "kv_dtype", "layers"),
    [
        pytest.param(2, False, "auto", 2, marks=pytest.mark.soak),
        pytest.param(2, False, "fp8", 2, marks=pytest.mark.soak),
        (1, True, "auto", 2),
        (2, False, "fp8", 1),
    ],
)
def test_ranks_of_the_gpu_engine_give_what_one_gives(
    kv_heads: int, exact: bool, kv_dtype: str, layers: int, tmp_path: Path
) -> None:
    from twolane.engine.cuda.startup.load import load_cuda_engine

    model = write_random_model(
        tmp_path, "qwen3", seed=1, layers=layers, kv_heads=kv_heads, head_dim=16
    )
    config = EngineConfig(
        model_dir=model, n_pages=8, page_tokens=64, exact=exact, kv_dtype=kv_dtype
    )
    alone = load_cuda_engine(config, device=torch.device("cpu"))
    expected = steps_ahead(alone)
    several_of = replace(config, ready_rows=1, ready_tokens=2, share_gpus=kv_heads == 1)
    with group(several_of, 2) as several:
        assert several.steps_ahead == alone.steps_ahead == 1
        found = steps_ahead(several)
    assert [t.token for t in found] == [t.token for t in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=2e-4)
        assert [t for t, _ in ours.top] == [t for t, _ in theirs.top]


def test_ranks_with_fp8_weights_are_near_what_one_gives(tmp_path: Path) -> None:
    from twolane.engine.cuda.startup.load import load_cuda_engine

    model = write_random_model(tmp_path, "llama", seed=1, layers=1)
    config = EngineConfig(
        model_dir=model, n_pages=8, page_tokens=64, exact=False, weights="fp8", kv_dtype="fp8"
    )
    expected = steps_ahead(load_cuda_engine(config, device=torch.device("cpu")))
    with group(config, 2) as several:
        found = steps_ahead(several)
    # A rank rounds its columns and its part of a row by their own largest.
    for ours, theirs in zip(found[:2], expected[:2], strict=True):
        near = dict(theirs.top)
        shared = [(logprob, near[token]) for token, logprob in ours.top if token in near]
        assert shared
        assert all(one == pytest.approx(other, abs=0.5) for one, other in shared)
