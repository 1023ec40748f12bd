"""One run of a cluster that sizes its pools, under a load in phases, with what happens when.

    calm        1 prefill and 1 decode worker do
    burst       both roles need two
    prompts     long ones with short answers: a decode worker becomes a prefill worker
    idle        nothing comes: all workers go
    first       one request, that starts a worker and is answered

The engine is the fake one at its own pace, so that a worker can do little, and two cores do for it.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import twolane
from benchmarks.scaling.flip_run import offers
from twolane.deploy.bundled import model_path
from twolane.errors import TwolaneError
from twolane.status import ClusterStatus
from twolane.testing import LocalCluster, start_local

PACE = {
    "fake_paced": True,
    "fake_step_s": 0.010,
    "fake_prefill_token_s": 0.001,
    "fake_decode_row_s": 0.001,
}
_LOOK_S, _WATCH_S = 0.25, 0.02
_FLIP = re.compile(r"flip (?P<worker>\S+) to (?P<role>\w+)")


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    lasts_s: float
    requests_per_s: float
    prompt_tokens: int
    answer_tokens: int


PHASES = (
    Phase("calm", 40, 0.6, 150, 150),
    Phase("burst", 70, 4.0, 150, 150),
    Phase("prompts", 80, 2.0, 650, 40),
    Phase("idle", 130, 0.0, 0, 0),
    Phase("first", 40, 0.3, 150, 60),
)


@dataclass(slots=True)
class Request:
    """Times in seconds since the run began. `error`: how it failed; empty: it was answered."""

    sent_s: float
    phase: str
    ttft_s: float | None = None
    took_s: float | None = None
    error: str = ""


@dataclass(slots=True)
class Flip:
    """`role` is the new one. `serves_s`: from the decision, as it was told, to the first look at
    which routers have the worker in that role alone."""

    worker: str
    role: str
    decided_s: float
    serves_s: float | None = None


@dataclass(slots=True)
class Looks:
    """Workers that serve prefill and decode, and those that exist, by time."""

    at_s: list[float] = field(default_factory=list)
    prefill: list[int] = field(default_factory=list)
    decode: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)


@dataclass(slots=True)
class LiveRun:
    requests: list[Request] = field(default_factory=list)
    deeds: list[tuple[float, str]] = field(default_factory=list)
    flips: list[Flip] = field(default_factory=list)
    looks: Looks = field(default_factory=Looks)
    most_held: int = 0

    @property
    def errors(self) -> list[str]:
        return [request.error for request in self.requests if request.error]

    def heard(self, now: float, text: str) -> None:
        """A decision, as the launcher tells it."""
        if "is to drain and go" not in text:
            self.deeds.append((now, text))
        if flip := _FLIP.match(text):
            self.flips.append(Flip(flip["worker"], flip["role"], now))

    def looked(self, now: float, status: ClusterStatus) -> None:
        """What routers have."""
        alive = [worker for worker in status.workers if worker.state == "alive"]
        here = [worker for worker in status.workers if worker.state != "gone"]
        looks = self.looks
        looks.at_s.append(round(now, 2))
        looks.prefill.append(sum("prefill" in worker.roles for worker in alive))
        looks.decode.append(sum("decode" in worker.roles for worker in alive))
        looks.held.append(len(here))
        self.most_held = max(self.most_held, len(here))
        for flip in self.flips:
            if flip.serves_s is None and offers(status, flip.worker, flip.role):
                flip.serves_s = now - flip.decided_s

    def sizes(self, begin_s: float, end_s: float) -> set[tuple[int, int]]:
        """The sizes (prefill, decode) that were seen in that time."""
        its = self.looks
        return {
            (p, d)
            for at, p, d in zip(its.at_s, its.prefill, its.decode, strict=True)
            if begin_s <= at < end_s
        }


def paced_model(folder: Path) -> Path:
    """A copy of the bundled model in `folder`, whose fake engine keeps to `PACE`."""
    model = folder / "model"
    shutil.copytree(model_path(), model)
    facts = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**facts, **PACE}))
    return model


def run_live(
    folder: Path, phases: Sequence[Phase] = PHASES, *, budget: int = 4, idle_s: float = 30.0
) -> LiveRun:
    """Start the cluster, run the phases, stop it. `folder` gets the model's directory."""
    with start_local(
        model=paced_model(folder),
        engine="fake",
        autoscale=True,
        budget=budget,
        min_prefill=0,
        min_decode=0,
        idle_s=idle_s,
        slo_ttft_s=2.0,
        slo_gap_s=0.050,
    ) as cluster:
        return asyncio.run(_Runner(cluster, phases).run())


class _Runner:
    def __init__(self, cluster: LocalCluster, phases: Sequence[Phase]) -> None:
        self._cluster = cluster
        self._phases = phases
        self._run = LiveRun()
        self._began_s = time.monotonic()
        self._n_events = len(cluster.events)

    async def run(self) -> LiveRun:
        watching = asyncio.create_task(self._watch())
        async with self._cluster.aclient() as client, asyncio.TaskGroup() as tasks:
            for phase in self._phases:
                await self._send(client, phase, tasks)
        watching.cancel()
        await asyncio.wait([watching])
        if not watching.cancelled() and (error := watching.exception()) is not None:
            raise error
        return self._run

    async def _send(
        self, client: twolane.AsyncClient, phase: Phase, tasks: asyncio.TaskGroup
    ) -> None:
        begin = self._now()
        source = random.Random(phase.name)
        n = 0
        while self._now() < begin + phase.lasts_s:
            if phase.requests_per_s and self._now() >= begin + n / phase.requests_per_s:
                tasks.create_task(self._ask(client, phase, source.randrange(1 << 30)))
                n += 1
            await asyncio.sleep(0.01)

    async def _ask(self, client: twolane.AsyncClient, phase: Phase, salt: int) -> None:
        source = random.Random(salt)
        prompt = [source.randrange(3, 2000) for _ in range(phase.prompt_tokens)]
        request = Request(self._now(), phase.name)
        self._run.requests.append(request)
        try:
            async with client.stream(
                token_ids=prompt, max_tokens=phase.answer_tokens, ignore_eos=True, timeout_s=120
            ) as stream:
                async for chunk in stream:
                    if chunk.tokens and request.ttft_s is None:
                        request.ttft_s = self._now() - request.sent_s
            request.took_s = self._now() - request.sent_s
        except TwolaneError as error:
            request.error = str(error) or type(error).__name__

    async def _watch(self) -> None:
        """Note the pools' sizes, and what the launcher tells."""
        with self._cluster.admin() as admin:
            looked_s = -1.0
            while True:
                self._read_events()
                waits = any(flip.serves_s is None for flip in self._run.flips)
                if waits or self._now() >= looked_s + _LOOK_S:
                    looked_s = self._now()
                    status = await asyncio.to_thread(admin.status)
                    self._run.looked(self._now(), status)
                await asyncio.sleep(_WATCH_S)

    def _read_events(self) -> None:
        events = self._cluster.events[self._n_events :]
        self._n_events += len(events)
        for event in events:
            if event["kind"] == "scaled":
                self._run.heard(self._now(), str(event.get("text", "")))

    def _now(self) -> float:
        return time.monotonic() - self._began_s
