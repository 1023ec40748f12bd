"""The GPU engine under the worker's own step loop and threads, steps one ahead, in real time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from decode_worker.role import DecodeRole
from engine.config import EngineConfig
from engine.cpu import load_engine
from engine.step import Engine
from prefill_worker.role import PrefillRole
from twolane.params import SamplingParams
from twolane.v1 import worker_pb2
from worker.config import StepLimits, WorkerConfig
from worker.observer import Nobody
from worker.role import Roles
from worker.rows import Row
from worker.site import Site
from worker.step_loop import StepLoop
from worker.step_runner import ThreadStepRunner

pytest.importorskip("triton")

PROMPTS = (5, 70, 33)  # lengths; the second is read in two steps, beside rows that decode


async def answers(engine: Engine) -> list[list[int]]:
    """What a colocated worker answers, in order of the prompts; every page comes back."""
    limits = StepLimits(step_tokens=64, decode_rows=8)
    site = Site(WorkerConfig(worker_id="w", limits=limits), engine)
    decode = DecodeRole(site)
    prefill = PrefillRole(site, adopter=decode)
    runner = ThreadStepRunner(engine)
    said: dict[str, dict[int, int]] = {f"r{i}": {} for i in range(len(PROMPTS))}
    finished: set[str] = set()

    def ship(now: float) -> None:
        for item in site.news.take():
            if isinstance(item, worker_pb2.TokenEvent):
                said[item.key.request_id][item.index] = item.token_id
            else:
                assert not item.message, item.message
                if item.kind == worker_pb2.RowEvent.KIND_FINISHED:
                    finished.add(item.key.request_id)

    steps = StepLoop(
        Roles(decode, prefill), runner, limits,
        returns=site.returns, ship=ship, observer=Nobody(),
    )  # fmt: skip
    life = asyncio.create_task(steps.run())
    for i, n in enumerate(PROMPTS):
        prefill.accept(row(site, i, n), 0.0)
    steps.wake()
    while len(finished) < len(PROMPTS) and not life.done():
        await asyncio.sleep(0.02)
    life.cancel()
    await asyncio.wait([life])
    await runner.close()
    assert life.cancelled(), life.exception()
    return [[said[name][k] for k in sorted(said[name])] for name in sorted(said)]


def row(site: Site, i: int, n_tokens: int) -> Row:
    params = SamplingParams(max_tokens=5 + i, temperature=0.0, ignore_eos=True)
    if i == 1:  # penalties need the token that the host has not seen
        params = SamplingParams(
            max_tokens=7, temperature=0.7, seed=3, repetition_penalty=1.3, ignore_eos=True
        )
    assign = worker_pb2.Assign(
        key=worker_pb2.AttemptKey(request_id=f"r{i}", attempt=1),
        token_ids=[(7 * k + i) % 250 + 3 for k in range(n_tokens)],
        n_prompt=n_tokens,
        roles=[worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE],
    )
    return Row(assign, params, site.spec, number=site.next_number(), arrived_s=0.0)


async def test_a_worker_a_step_ahead_says_what_one_on_the_cpu_says(
    model_dir: Callable[[str], Path],
) -> None:
    from engine.cuda.load import load_cuda_engine

    directory = model_dir("qwen3")
    plain = EngineConfig(model_dir=directory, n_pages=16, page_tokens=64)
    ahead = EngineConfig(model_dir=directory, n_pages=16, exact=False)
    engine = load_cuda_engine(ahead, device=torch.device("cpu"))
    assert engine.steps_ahead == 1
    assert await answers(engine) == await answers(load_engine(plain))
