"""The GPU engine under the worker's own step loop and threads, steps one ahead, in real time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.engine.colocated import Job, answer_all
from twolane.engine.config import EngineConfig
from twolane.engine.cpu.engine import load_engine
from twolane.params import SamplingParams
from twolane.worker.config import StepLimits

pytest.importorskip("triton")

PROMPTS = (5, 70, 33)  # lengths; the second is read in two steps, beside rows that decode
LIMITS = StepLimits(step_tokens=64, decode_rows=8)


def job(i: int, n_tokens: int) -> Job:
    params = SamplingParams(max_tokens=5 + i, temperature=0.0, ignore_eos=True)
    if i == 1:  # penalties need the token that the host has not seen
        params = SamplingParams(
            max_tokens=7, temperature=0.7, seed=3, repetition_penalty=1.3, ignore_eos=True
        )
    return Job([(7 * k + i) % 250 + 3 for k in range(n_tokens)], params)


async def test_a_worker_a_step_ahead_says_what_one_on_the_cpu_says(
    model_dir: Callable[[str], Path],
) -> None:
    from twolane.engine.cuda.startup.load import load_cuda_engine

    directory = model_dir("qwen3")
    plain = EngineConfig(model_dir=directory, n_pages=16, page_tokens=64)
    ahead = EngineConfig(model_dir=directory, n_pages=16, exact=False)
    engine = load_cuda_engine(ahead, device=torch.device("cpu"))
    assert engine.steps_ahead == 1
    jobs = [job(i, n) for i, n in enumerate(PROMPTS)]
    expected = await answer_all(load_engine(plain), jobs, LIMITS)
    assert await answer_all(engine, jobs, LIMITS) == expected
    assert [len(tokens) for tokens in expected] == [5, 7, 7]
