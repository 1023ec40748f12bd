"""The offline mix on an engine that answers nonsense quickly."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.engine.colocated import Job, answer_all
from benchmarks.engine.mix import LIMITS, REQUESTS, measure_mix, mix
from twolane.engine.fake import FakeEngine, FakeEngineConfig
from twolane.params import SamplingParams
from twolane.worker.config import StepLimits

SMALL = StepLimits(step_tokens=256, decode_rows=32)


def test_the_mix_is_as_long_as_the_one_that_vllm_answered() -> None:
    jobs = mix(1000)
    lengths = [len(job.token_ids) for job in jobs]
    answers = [job.params.max_tokens or 0 for job in jobs]
    assert len(jobs) == REQUESTS <= LIMITS.decode_rows
    assert (min(lengths) >= 16, max(lengths) <= 4096) == (True, True)
    assert (min(answers) >= 8, max(answers) <= 1024) == (True, True)
    assert sum(lengths) == pytest.approx(709_000, rel=0.01)
    assert sum(answers) == pytest.approx(253_000, rel=0.01)


def test_every_request_of_a_mix_is_answered_in_full() -> None:
    engine = FakeEngine(FakeEngineConfig(n_pages=60))  # not all fit at once
    jobs = mix(engine.spec.vocab_size, 40, shrink=16)
    found = measure_mix(engine, jobs, SMALL)
    assert found["requests"] == 40
    assert found["output_tokens"] == sum(job.params.max_tokens or 0 for job in jobs)
    assert found["steps"] > max(job.params.max_tokens or 0 for job in jobs)


def test_a_request_that_fails_fails_the_measurement() -> None:
    engine = FakeEngine(FakeEngineConfig(n_pages=60))
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    jobs = [Job([5, 6], params), Job([engine.spec.vocab_size + 1], params)]
    with pytest.raises(ExceptionGroup) as group:
        asyncio.run(answer_all(engine, jobs, SMALL))
    assert group.group_contains(RuntimeError, match="request 1 ended early")
