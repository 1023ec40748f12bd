"""One run: a cluster under steady load, one of whose workers takes the other role and back."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from twolane.aclient import AsyncClient
from twolane.admin import AdminClient
from twolane.errors import TwolaneError
from twolane.status import ClusterStatus
from twolane.testing import LocalCluster
from twolane.v1 import acts_pb2
from twolane.values import Ledger

OTHER = {"prefill": "decode", "decode": "prefill"}
_LOOK_S = 0.005


class FlipLateError(RuntimeError):
    """A worker has not announced its new role in time."""


@dataclass(frozen=True, slots=True)
class FlipConfig:
    """`apart_s`: from one flip's command to the next one's, and from the last one's to the end."""

    n_flips: int
    apart_s: float
    requests_per_s: float
    prompt_tokens: int
    answer_tokens: int
    warm_up_s: float = 4.0
    announced_within_s: float = 20.0
    answered_within_s: float = 60.0


@dataclass(slots=True)
class Request:
    """As its client saw it. Times are seconds since the run began, `times_s` those of the tokens.
    `error`: how it failed; empty: it was answered."""

    sent_s: float
    times_s: list[float] = field(default_factory=list)
    ledger: Ledger | None = None
    error: str = ""


@dataclass(slots=True)
class Flip:
    """`role` is the new one. `commanded_s`: when the operator's call was sent; `answered_s`: when
    it was answered; `announced_s`: when routers had the worker in that role alone."""

    role: str
    commanded_s: float
    answered_s: float = 0.0
    announced_s: float = 0.0


@dataclass(slots=True)
class FlipRun:
    worker: str
    requests: list[Request] = field(default_factory=list)
    flips: list[Flip] = field(default_factory=list)
    ended_s: float = 0.0


async def run_flips(
    cluster: LocalCluster, worker: str, config: FlipConfig, say: Callable[[str], None]
) -> FlipRun:
    """Flip the prefill worker of that name to decode and back, by turns, under load. Raises
    an `ExceptionGroup` of `FlipLateError` and what the operator's call raises."""
    async with cluster.aclient() as client, asyncio.TaskGroup() as tasks:
        with cluster.admin() as admin:
            runner = _Runner(client, config, FlipRun(worker))
            sending = tasks.create_task(runner.send(tasks))
            await asyncio.sleep(config.warm_up_s + config.apart_s)
            role = "prefill"
            for _ in range(config.n_flips):
                role = OTHER[role]
                flip = await flip_worker(admin, worker, role, config, runner.now)
                runner.run.flips.append(flip)
                say(
                    f"{flip.commanded_s:6.1f} s  {worker} to {role}: announced after "
                    f"{1e3 * (flip.announced_s - flip.commanded_s):.0f} ms"
                )
                await asyncio.sleep(flip.commanded_s + config.apart_s - runner.now())
            runner.run.ended_s = runner.now()
            sending.cancel()
    return runner.run


async def flip_worker(
    admin: AdminClient, worker: str, role: str, config: FlipConfig, now: Callable[[], float]
) -> Flip:
    """Command the flip, and watch until routers have the worker in that role alone."""
    flip = Flip(role, now())
    act = acts_pb2.Act(request_id=secrets.token_hex(8), reason="benchmark")
    request = acts_pb2.FlipWorkerRequest(worker_id=worker, act=act)

    async def command() -> None:
        await asyncio.to_thread(admin.call, "FlipWorker", request)
        flip.answered_s = now()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(command())
        while not offers(await asyncio.to_thread(admin.status), worker, role):
            if now() > flip.commanded_s + config.announced_within_s:
                raise FlipLateError(f"{worker} has not announced {role} alone")
            await asyncio.sleep(_LOOK_S)
        flip.announced_s = now()
    return flip


def offers(status: ClusterStatus, worker: str, role: str) -> bool:
    """Whether routers have the worker alive in that role alone."""
    its = [one.roles for one in status.workers if (one.worker_id, one.state) == (worker, "alive")]
    return its == [(role,)]


class _Runner:
    def __init__(self, client: AsyncClient, config: FlipConfig, run: FlipRun) -> None:
        self.run = run
        self._client = client
        self._config = config
        self._began_s = time.monotonic()
        self._source = random.Random(1)

    def now(self) -> float:
        return time.monotonic() - self._began_s

    async def send(self, tasks: asyncio.TaskGroup) -> None:
        """Requests at an even pace, whatever becomes of those before."""
        n = 0
        while True:
            tasks.create_task(self._ask())
            n += 1
            await asyncio.sleep(n / self._config.requests_per_s - self.now())

    async def _ask(self) -> None:
        its = self._config
        prompt = [self._source.randrange(3, 1000) for _ in range(its.prompt_tokens)]
        request = Request(self.now())
        self.run.requests.append(request)
        try:
            async with self._client.stream(
                token_ids=prompt,
                max_tokens=its.answer_tokens,
                temperature=0,
                ignore_eos=True,
                timeout_s=its.answered_within_s,
            ) as stream:
                async for chunk in stream:
                    request.times_s += [self.now()] * len(chunk.tokens)
                    request.ledger = chunk.ledger
        except TwolaneError as error:
            request.error = str(error) or type(error).__name__
        else:
            if len(request.times_s) != its.answer_tokens:
                request.error = f"{len(request.times_s)} tokens, not {its.answer_tokens}"
