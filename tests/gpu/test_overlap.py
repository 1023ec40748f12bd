"""Decode steps whose launches overlap give the bits of steps whose launches do not."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton")

import torch

from tests.gpu.rows import PAGES_A_ROW, Row, answer_all, params_of, prompt_of
from twolane.engine.config import EngineConfig
from twolane.engine.kernels.pdl import APART, EARLY, OVERLAP
from twolane.engine.step import SampledToken
from twolane.engine.testing import write_random_model

pytestmark = pytest.mark.gpu

ROWS = (1, 3, 20, 128, 150)
TOKENS = 12


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_overlapping_launches_change_no_token_and_no_logprob(family: str, tmp_path: Path) -> None:
    from twolane.engine.cuda.startup.load import load_cuda_engine
    from twolane.engine.cuda.tuning import Tuning

    write_random_model(tmp_path, family, seed=3, hidden_size=256)
    config = EngineConfig(
        model_dir=tmp_path, dtype="bfloat16", n_pages=max(ROWS) * PAGES_A_ROW, page_tokens=64
    )
    answers: list[list[list[list[SampledToken]]]] = []
    for overlap in (APART, OVERLAP, EARLY):
        engine = load_cuda_engine(config, tuning=Tuning(overlap=overlap))
        answers.append([])
        for n in ROWS:
            rows = [Row(i, prompt_of(30 + 3 * i), params_of(i % 2)) for i in range(n)]
            answer_all(engine, rows, TOKENS, chunk=lambda: 1 << 20)
            answers[-1].append([row.found for row in rows])
        engine.close()
        torch.cuda.empty_cache()
    for n, apart, overlapping, early in zip(ROWS, *answers, strict=True):
        assert overlapping == apart, f"{n} rows"
        assert early == apart, f"{n} rows"
