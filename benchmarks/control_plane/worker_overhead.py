"""The time per step that a decode worker's event loop spends, without its engine.

    peer process --- Session: ASSIGN ----------> worker (this process)     its engine pipelines
                 --- Connect: RESERVE, Chunk, DONE ->                      steps, and computes
                 <-- tokens, events, Reserved, COMMIT                      nothing for `step-ms`

A real worker with a decode role and real gRPC streams; the peer acts as router and prefill worker,
and keeps `rows` answers in flight: whenever one ends, another is assigned, so that joins and ends
happen between steps as in production. Timed by wall clock on the loop's thread: each call of what
the loop does in a step, and between steps. `CPU a step` is for the whole process, including gRPC's
threads.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click
import grpc
import numpy as np

from benchmarks.results import save
from twolane.decode_worker.role import DecodeRole
from twolane.deploy.process.serving import settle_memory
from twolane.engine.fake import FakeEngine, FakeEngineConfig
from twolane.engine.step import RowResult, RowWork, SampledToken
from twolane.kvtransfer.page_lane import PLAIN_RECEIVER
from twolane.kvtransfer.transport import Checked, LandingEvent, PageIds, Wake
from twolane.rpc.channel_options import INTERNAL_SERVER_OPTIONS
from twolane.security.gate import Gate
from twolane.worker.config import StepLimits, WorkerConfig
from twolane.worker.context import WorkerContext
from twolane.worker.doors.services import Services
from twolane.worker.metrics import WorkerMetrics
from twolane.worker.peers.peers import Wiring
from twolane.worker.role import Roles
from twolane.worker.steps.step_runner import ThreadStepRunner
from twolane.worker.worker import Worker

PAGE_TOKENS, POOL_PAGES, PROMPT_TOKENS = 32, 13_000, 1024
TRANSPORT = "benchmark"
_WARM_UP_STEPS = 300
_SWITCH_S = 100e-6  # as in a worker's process


@dataclass(frozen=True, slots=True)
class _IdleStep:
    """Done `at_s`; each row's token is the step's number."""

    rows: list[int]
    token: int
    at_s: float
    written: str = "the event of a device that this process sees"

    def result(self) -> list[RowResult]:
        time.sleep(max(0.0, self.at_s - time.monotonic()))
        return [RowResult(row, (SampledToken(self.token),)) for row in self.rows]


class IdleEngine(FakeEngine):
    """Computes nothing: steps are submitted at once, and each takes step_s after the previous
    one."""

    def __init__(self, step_s: float) -> None:
        super().__init__(FakeEngineConfig(n_pages=POOL_PAGES, page_tokens=PAGE_TOKENS))
        self.spec = replace(self.spec, vocab_size=150_000, max_context_tokens=32_768)
        self.steps_ahead = 1
        self._step_s = step_s
        self._done_s = 0.0

    def only_launches(self, work: Sequence[RowWork]) -> bool:
        return True

    def submit(self, work: Sequence[RowWork]) -> _IdleStep:
        self.steps += 1
        self._done_s = max(self._done_s, time.monotonic()) + self._step_s
        return _IdleStep([row.row for row in work], self.steps, self._done_s)


class InstantLanding:
    """Pages land as soon as they are announced."""

    sender_writes = False
    lane = PLAIN_RECEIVER
    digests: tuple[str, ...] = ()
    address = "nowhere"

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()  # nothing ever is
        self._news: list[LandingEvent] = []

    def grant(self, sender_epoch: int, generation: int, pages: PageIds) -> None: ...

    def check(self, generation: int, first: int, n: int) -> None:
        self._news.append(Checked(generation, first, n, None))

    def revoke(self, generation: int) -> None: ...

    def poll(self) -> list[LandingEvent]:
        news, self._news = self._news, []
        return news

    def set_wake(self, wake: Wake) -> None: ...

    def close(self) -> None: ...


class Stopwatch:
    """Wraps methods, and records the duration of each call, by name."""

    def __init__(self) -> None:
        self.calls: dict[str, list[float]] = defaultdict(list)

    def watch(self, owner: Any, method: str, name: Callable[..., str]) -> None:
        """`name` is called with the call's arguments."""
        wrapped = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            label, begun_s = name(*args), time.perf_counter()
            try:
                return wrapped(*args, **kwargs)
            finally:
                self.calls[label].append(time.perf_counter() - begun_s)

        setattr(owner, method, timed)

    def figures(self) -> dict[str, dict[str, float]]:
        """In milliseconds: median, 99th percentile; and the number of calls."""
        return {
            name: {
                "p50_ms": round(float(np.percentile(took, 50)) * 1e3, 4),
                "p99_ms": round(float(np.percentile(took, 99)) * 1e3, 4),
                "calls": len(took),
            }
            for name, took in sorted(self.calls.items())
        }


def _watch(stopwatch: Stopwatch, worker: Worker, role: DecodeRole) -> None:
    steps, commands, receiver = worker._steps, worker._commands, role.receiver
    stopwatch.watch(role, "apply", lambda *_: "step: apply")
    stopwatch.watch(steps, "_plan", lambda *_: "step: plan")
    stopwatch.watch(steps, "_ship", lambda *_: "step: ship")
    stopwatch.watch(steps, "_between_steps", lambda *_: "step: between")
    stopwatch.watch(
        commands, "handle", lambda _, request, now: f"command: {request.WhichOneof('command')}"
    )
    stopwatch.watch(
        receiver, "on_message", lambda _, message, now: f"transfer: {message.WhichOneof('message')}"
    )
    stopwatch.watch(receiver, "tick", lambda *_: "transfer: tick")
    stopwatch.watch(receiver, "poll", lambda *_: "transfer: poll")
    stopwatch.watch(role, "_join", lambda *_: "row: join")
    stopwatch.watch(role, "_end", lambda *_: "row: end")
    stopwatch.watch(worker._sessions, "_describe_load", lambda: "beat: load")
    stopwatch.watch(worker._registry, "expire", lambda *_: "beat: expire")


async def measure(n_rows: int, n_steps: int, answer_tokens: int, step_s: float) -> dict[str, Any]:
    """Figures of `n_steps` steps with that many answers in flight."""
    engine, landing = IdleEngine(step_s), InstantLanding()
    config = WorkerConfig(
        worker_id="decode-0", limits=StepLimits(step_tokens=2048, decode_rows=n_rows)
    )
    context = WorkerContext(config, engine)
    role, metrics = DecodeRole(context), WorkerMetrics()
    wire = Wiring(_never, _never, {TRANSPORT: landing}, (TRANSPORT,))
    worker = Worker(
        config, context, Roles(role, None), ThreadStepRunner(engine), wire, observer=metrics
    )
    metrics.watch(worker)
    server = grpc.aio.server(options=INTERNAL_SERVER_OPTIONS)
    gate = Gate("worker", is_private=True)
    server.add_generic_rpc_handlers(Services(worker, gate).handlers())
    worker.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    sys.setswitchinterval(_SWITCH_S)
    settle_memory()
    life = asyncio.create_task(worker.run())
    spec = engine.spec
    told = (worker.endpoint, context.epoch, n_rows, answer_tokens, spec.fingerprint, spec.layout)
    command = [
        sys.executable,
        "-m",
        "benchmarks.control_plane.worker_overhead_peer",
        *map(str, told),
    ]
    peer = await asyncio.create_subprocess_exec(*command)
    try:
        while len(role._running) < n_rows - 2 or engine.steps < _WARM_UP_STEPS:
            assert peer.returncode is None, "the peer broke"
            assert not life.done(), "the worker broke"
            await asyncio.sleep(0.05)
        stopwatch, first = Stopwatch(), engine.steps
        _watch(stopwatch, worker, role)
        collections: list[float] = []
        watch_gc(collections)
        begun_s, cpu_s = time.perf_counter(), time.process_time()
        while engine.steps < first + n_steps:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        took_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
        steps = engine.steps - first
    finally:
        peer.kill()
        await peer.wait()
    life.cancel()
    await asyncio.wait([life])
    await server.stop(0)
    calls = stopwatch.figures()
    parts = [sum(stopwatch.calls[f"step: {part}"]) for part in ("apply", "ship", "plan")]
    return {
        "rows": n_rows,
        "steps": steps,
        "wall_ms_a_step": round(took_s / steps * 1e3, 3),
        "cpu_ms_a_step": round(cpu_s / steps * 1e3, 3),
        "apply_ship_plan_ms_a_step": round(sum(parts) / steps * 1e3, 3),
        "collections": len(collections),
        "longest_collection_ms": round(max(collections, default=0.0) * 1e3, 3),
        "calls": calls,
    }


def watch_gc(took: list[float]) -> None:
    """From now on, append the duration in seconds of each garbage collection."""
    begun: list[float] = []

    def on_collection(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            begun.append(time.perf_counter())
        elif begun:
            took.append(time.perf_counter() - begun.pop())

    gc.callbacks.append(on_collection)


def _never(*_: Any) -> Any:
    raise AssertionError("a decode worker dials no peer")


@click.command(help="Measure what a decode worker's event loop spends a step.")
@click.option("--rows", default=128, show_default=True)
@click.option("--steps", default=2000, show_default=True)
@click.option("--answer", "answer_tokens", default=512, show_default=True, help="Tokens a row.")
@click.option("--step-ms", default=8.0, show_default=True, help="How long the engine takes.")
@click.option("--save/--no-save", "is_saved", default=True)
def main(rows: int, steps: int, answer_tokens: int, step_ms: float, is_saved: bool) -> None:
    figures = asyncio.run(measure(rows, steps, answer_tokens, step_ms / 1e3))
    for name, figure in figures.items():
        if name != "calls":
            click.echo(f"{name:28} {figure}")
    for name, call in figures["calls"].items():
        click.echo(
            f"{name:28} p50 {call['p50_ms']:8.3f} p99 {call['p99_ms']:8.3f} ms"
            f"  {call['calls']:6} calls"
        )
    if is_saved:
        click.echo(f"saved {save('worker_overhead', figures)}")


if __name__ == "__main__":
    main()
