"""One client process: sends its share of a plan on time, and reports each answer.

Started by `benchmarks.load.client_processes`. JSON lines: reads a job, writes "ready", reads the
start time (seconds of CLOCK_MONOTONIC, one clock for all processes of a host). Then writes a
request's index when its first token arrives, and its record when it has ended.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import uvloop

from benchmarks.load.caller import Answer, Caller, is_http, make_caller, now_s
from benchmarks.load.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One process's share. Rows of `requests`: index, arrival_s, prompt_tokens, output_tokens.

    Request i goes to endpoint i modulo their number, whichever process sends it.
    """

    endpoints: Sequence[str]
    model: str
    vocab_size: int
    seed: Sequence[int]
    timeout_s: float
    requests: list[tuple[int, float, int, int]]

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def draw_prompt(vocab_size: int, seed: Sequence[int], index: int, n_prompt: int) -> list[int]:
    """Random token ids that depend only on seed and index."""
    rng = np.random.default_rng([*seed, index])
    return [int(token_id) for token_id in rng.integers(0, vocab_size, n_prompt)]


async def send_job(
    job: Job,
    start: Callable[[], Awaitable[float]],
    emit: Callable[[Record | int], None],
) -> None:
    """Build every request, connect, call `start` for the start time, send open loop."""
    callers = [make_caller(endpoint, job.model) for endpoint in job.endpoints]
    shares = []
    for index, arrival_s, n_prompt, n_output in job.requests:
        caller = callers[index % len(callers)]
        prompt = draw_prompt(job.vocab_size, job.seed, index, n_prompt)
        message = caller.build(prompt, n_output, index)
        record = Record(index, arrival_s, 0.0, n_prompt, n_output, ())
        shares.append((caller, message, record))
    async with AsyncExitStack() as stack:
        for caller in callers:
            await stack.enter_async_context(caller)
        gc.freeze()
        start_s = await start()
        async with asyncio.TaskGroup() as tasks:
            for caller, message, record in shares:
                tasks.create_task(_send_one(caller, message, record, start_s, job.timeout_s, emit))


async def _send_one(
    caller: Caller,
    message: Any,
    asked: Record,
    start_s: float,
    timeout_s: float,
    emit: Callable[[Record | int], None],
) -> None:
    due_s = start_s + asked.arrival_s
    await asyncio.sleep(due_s - now_s())
    late_s = now_s() - due_s
    answer = Answer(due_s, on_first=lambda: emit(asked.index))
    await caller.call(message, answer, timeout_s)
    answer.end(asked.output_tokens)
    emit(asked.answered(answer.times_s, answer.failure, answer.ledger, late_s=late_s))


def main() -> None:
    """The process: see the module's docstring."""
    job = Job(**json.loads(sys.stdin.readline()))

    async def start() -> float:
        print(json.dumps("ready"), flush=True)
        return float(json.loads(await asyncio.to_thread(sys.stdin.readline)))

    def emit(news: Record | int) -> None:
        print(json.dumps(news if isinstance(news, int) else news.to_json()), flush=True)

    run = uvloop.run if is_http(job.endpoints[0]) else asyncio.run
    run(send_job(job, start, emit))


if __name__ == "__main__":
    main()
