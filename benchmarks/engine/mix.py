"""1,000 requests of mixed lengths, all submitted at once, through the colocated worker loop."""

from __future__ import annotations

import asyncio
import random
import time
from statistics import median
from typing import Any

from benchmarks.engine.colocated import Job, Steps, answer_all
from benchmarks.engine.points import has_vllms_card
from twolane.engine.step import Engine
from twolane.params import SamplingParams
from twolane.worker.config import StepLimits

VLLM_S = 34.9  # vLLM 0.24 on an H200, 709k tokens in, 253k out
REQUESTS = 1000
SEED = 318  # 711k tokens in, 255k out
LIMITS = StepLimits(step_tokens=8192, decode_rows=1024)


def mix(vocab_size: int, n: int = REQUESTS, *, shrink: int = 1) -> list[Job]:
    """Prompts of lognormal(6.2, 0.9) random tokens within 16 and 4,096, answers of lognormal(5.2,
    0.8) within 8 and 1,024; `shrink` divides the lengths, for tests."""
    lengths, ids = random.Random(SEED), random.Random(SEED)

    def length(mean: float, deviation: float, least: int, most: int) -> int:
        drawn = int(lengths.lognormvariate(mean, deviation))
        return max(1, min(max(drawn, least), most) // shrink)

    jobs = []
    for _ in range(n):
        tokens = [ids.randrange(3, vocab_size) for _ in range(length(6.2, 0.9, 16, 4096))]
        params = SamplingParams(
            temperature=0.0, max_tokens=length(5.2, 0.8, 8, 1024), ignore_eos=True
        )
        jobs.append(Job(tokens, params))
    return jobs


def measure_mix(
    engine: Engine, jobs: list[Job] | None = None, limits: StepLimits = LIMITS
) -> dict[str, Any]:
    """Seconds from the first request's acceptance to the last token, twice: an engine that is
    warmed up for `limits` is as fast the first time. The second run is compared with vLLM."""
    jobs = jobs or mix(engine.spec.vocab_size)
    times: list[float] = []
    for _ in range(2):
        steps = Steps()
        started = time.perf_counter()
        answers = asyncio.run(answer_all(engine, jobs, limits, steps=steps))
        times.append(time.perf_counter() - started)
    first_s, time_s = times
    is_compared = has_vllms_card()
    for job, tokens in zip(jobs, answers, strict=True):
        assert len(tokens) == job.params.max_tokens, "an answer of another length"
    n_in, n_out = sum(len(job.token_ids) for job in jobs), sum(map(len, answers))
    found = {
        "requests": len(jobs),
        "prompt_tokens": n_in,
        "output_tokens": n_out,
        "first_time_s": round(first_s, 2),
        "time_s": round(time_s, 2),
        "first_of_second": round(first_s / time_s, 3),
        "output_tokens_per_s": round(n_out / time_s),
        "steps": len(steps.seconds),
        "median_step_ms": round(median(steps.seconds) * 1e3, 2),
        "vllm_s": VLLM_S if is_compared else None,
        "of_vllm": round(time_s / VLLM_S, 3) if is_compared else None,
    }
    print(
        f"mix of {len(jobs)} requests, {n_in} tokens in, {n_out} out: {time_s:.1f} s "
        f"({first_s:.1f} s the first time), "
        + (f"{time_s / VLLM_S:.2f} of vLLM, " if is_compared else "")
        + f"{len(steps.seconds)} steps",
        flush=True,
    )
    return found
