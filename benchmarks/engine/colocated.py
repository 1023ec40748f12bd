"""Runs requests through a worker's own step loop, both roles on one engine: no network, no router.

jobs --> PrefillRole --> DecodeRole --> answers         StepLoop, ThreadStepRunner: the worker's
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from twolane.decode_worker.role import DecodeRole
from twolane.engine.step import Engine
from twolane.params import SamplingParams
from twolane.prefill_worker.config import PrefillConfig
from twolane.prefill_worker.role import PrefillRole
from twolane.v1 import worker_pb2
from twolane.worker.config import StepLimits, WorkerConfig
from twolane.worker.context import WorkerContext
from twolane.worker.role import Roles
from twolane.worker.rows import Row
from twolane.worker.steps.step_loop import StepLoop
from twolane.worker.steps.step_runner import ThreadStepRunner

_Kind = worker_pb2.RowEvent
_GOES_WELL = {_Kind.KIND_HANDED_OVER, _Kind.KIND_JOINED, _Kind.KIND_FINISHED}


@dataclass(frozen=True, slots=True)
class Job:
    """One request: the prompt, and how to answer."""

    token_ids: Sequence[int]
    params: SamplingParams


@dataclass(slots=True)
class Steps:
    """Implements `twolane.worker.observer.WorkerObserver`: records the loop's steps."""

    seconds: list[float] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    def on_step(self, seconds: float, positions: int) -> None:
        self.seconds.append(seconds)
        self.positions.append(positions)

    def on_tokens(self, n: int) -> None: ...

    def on_event(self, event: worker_pb2.RowEvent) -> None: ...


async def answer_all(
    engine: Engine, jobs: Sequence[Job], limits: StepLimits, *, steps: Steps | None = None
) -> list[list[int]]:
    """The answers, in the order of the jobs, which are all there from the start.

    Room for a whole answer is reserved before a row starts, so none is preempted. If a row ends
    before its last token, raises RuntimeError in an exception group.
    """
    context = WorkerContext(WorkerConfig(worker_id="offline", limits=limits), engine)
    decode = DecodeRole(context)
    queue = PrefillConfig(queue_limit=max(1, len(jobs)))
    prefill = PrefillRole(context, queue, adopter=decode)
    left = len(jobs)
    over = asyncio.Event()

    def ship(now: float) -> None:
        nonlocal left
        for item in context.outbox.take():
            if item.kind not in _GOES_WELL or item.message:
                raise RuntimeError(f"request {item.key.submission_id} ended early: {item}")
            if item.kind == _Kind.KIND_FINISHED:
                left -= 1
        if not left:
            over.set()

    runner = ThreadStepRunner(engine)
    loop = StepLoop(
        Roles(decode, prefill), runner, limits,
        returns=context.returns, ship=ship, observer=steps or Steps(),
    )  # fmt: skip
    now = asyncio.get_running_loop().time()
    rows = [_row(context, nth, job, now) for nth, job in enumerate(jobs)]
    for row in rows:
        prefill.accept(row, now)
    try:
        async with asyncio.TaskGroup() as group:
            life = group.create_task(loop.run())
            await over.wait()
            life.cancel()
    finally:
        await runner.close()
    return [row.token_ids[row.n_prompt :] for row in rows]


def _row(context: WorkerContext, nth: int, job: Job, now: float) -> Row:
    assign = worker_pb2.Assign(
        key=worker_pb2.AttemptKey(submission_id=str(nth), attempt=1),
        roles=[worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE],
        token_ids=job.token_ids,
        n_prompt=len(job.token_ids),
        growth_tokens=job.params.max_tokens,
    )
    return Row(assign, job.params, context.spec, number=context.next_number(), arrived_s=now)
