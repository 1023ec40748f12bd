"""Load on a cluster whose workers are killed, and the same requests again without kills.

load     `in_flight` requests at any time, each with its own prompt and seed
kills    a random worker of a role that has requests: kill -9, and wait until it is back
calm     all requests are sent again: in exact mode every token must be the same
left     no request in the router, no page used, pinned or quarantined on any worker
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.load.target import ask
from twolane import AsyncClient, TwolaneError
from twolane.status import ClusterStatus, WorkerInfo
from twolane.testing import LocalCluster

ROLES = ("prefill", "decode")
_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class KillsConfig:
    """Lengths are used in turn. `together`: workers of both roles are killed concurrently, so that
    each kill waits only for its own role."""

    n_kills: int = 5  # of each role
    n_requests: int = 40  # at least; the load continues until the last victim is back
    in_flight: int = 8
    prompt_tokens: Sequence[int] = (200, 40, 600)
    output_tokens: Sequence[int] = (64,)
    together: bool = False
    seed: int = 1
    most_calm_s: float = 1.0  # between two kills, drawn between 0 and this
    timeout_s: float = 120.0  # a request that takes longer hangs
    back_s: float = 300.0  # for a worker to come back


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """`tokens`: what clients received until the worker was back; `silence_s`: the longest time in
    which no client received anything."""

    worker: str
    role: str
    at_s: float  # since the load began
    requests: int  # that the worker had
    down_s: float
    tokens: int
    silence_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    token_ids: tuple[int, ...]
    attempts: int
    heard_s: tuple[float, ...]  # when each message arrived, on our clock


@dataclass(slots=True)
class Outcome:
    """The results. `left` lists what was wrong at the end."""

    kills: list[Kill] = field(default_factory=list)
    answers: dict[int, Answer] = field(default_factory=dict)
    calm: dict[int, Answer] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)  # including hung ones
    left: list[str] = field(default_factory=list)
    load_s: float = 0.0
    resumes: int = 0  # new attempts, as the router counts them

    @property
    def moved(self) -> int:
        """Requests that took more than one attempt."""
        return sum(answer.attempts > 1 for answer in self.answers.values())

    @property
    def different(self) -> list[int]:
        """Requests whose calm answer has other tokens."""
        calm = self.calm
        return [
            index
            for index, answer in self.answers.items()
            if index not in calm or calm[index].token_ids != answer.token_ids
        ]

    def problems(self, config: KillsConfig) -> list[str]:
        """Empty if everything is as promised."""
        found = [*self.failed, *self.left]
        found += [f"request {index} has other tokens on a calm cluster" for index in self.different]
        found += [
            f"no request was served while {k.worker} was down" for k in self.kills if not k.tokens
        ]
        found += ["no kill cost any request an attempt"] * (not self.moved)
        if len(self.kills) != config.n_kills * len(ROLES):
            found.append(f"{len(self.kills)} kills of {config.n_kills} each")
        return found


class KillsRun:
    """One run on a cluster with at least two workers of each role. Used once."""

    def __init__(
        self, cluster: LocalCluster, config: KillsConfig, say: Callable[[str], None] = print
    ) -> None:
        self.outcome = Outcome()
        self._cluster = cluster
        self._config = config
        self._say = say
        self._random = random.Random(config.seed)
        self._heard: list[tuple[float, int]] = []  # when, and how many tokens
        self._first_heard = asyncio.Event()
        self._is_over = False
        self._vocab_size = 0
        self._began_s = 0.0

    async def run(self) -> Outcome:
        outcome, config = self.outcome, self._config
        target = await ask("kills", [self._cluster.endpoint])
        self._vocab_size = target.vocab_size
        async with self._cluster.aclient() as client:
            before = (await asyncio.to_thread(self._cluster.status)).counters
            self._began_s = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                load = tasks.create_task(self._load(client, outcome.answers, None))
                await self._until_heard()
                if config.together:
                    await asyncio.gather(*(self._kill_all(client, role) for role in ROLES))
                else:
                    turns = list(ROLES) * config.n_kills
                    self._random.shuffle(turns)
                    for role in turns:
                        await self._kill(client, role)
                self._is_over = True
                await load
            outcome.load_s = time.monotonic() - self._began_s
            after = (await asyncio.to_thread(self._cluster.status)).counters
            outcome.resumes = sum(
                after[name] - before.get(name, 0) for name in after if name.startswith("resumes.")
            )
            self._say(f"{len(outcome.answers)} answers; asking for them again in calm")
            await self._load(client, outcome.calm, len(outcome.answers) + len(outcome.failed))
            outcome.left = await self._settle(client)
        return outcome

    # -- the load ---------------------------------------------------------------------------

    async def _load(
        self, client: AsyncClient, answers: dict[int, Answer], n_requests: int | None
    ) -> None:
        """Send n_requests requests, or send until the kills are over."""
        indexes = itertools.count()

        async def one_after_the_other() -> None:
            for index in indexes:
                wanted = self._config.n_requests if n_requests is None else n_requests
                if index >= wanted and (n_requests is not None or self._is_over):
                    return
                try:
                    answers[index] = await self._ask(client, index)
                except TwolaneError as error:
                    self.outcome.failed.append(f"request {index}: {type(error).__name__}: {error}")

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._config.in_flight):
                tasks.create_task(one_after_the_other())

    async def _ask(self, client: AsyncClient, index: int) -> Answer:
        """Alternately greedy and seeded; the same whenever it is sent."""
        config, source = self._config, random.Random(f"{self._config.seed} {index}")
        n = config.prompt_tokens[index % len(config.prompt_tokens)]
        prompt = [source.randrange(3, self._vocab_size) for _ in range(n)]
        heard_s = []
        async with client.stream(
            token_ids=prompt,
            temperature=0.9 * (index % 2),
            seed=index,
            max_tokens=config.output_tokens[index % len(config.output_tokens)],
            ignore_eos=True,
            timeout_s=config.timeout_s,
        ) as stream:
            async for chunk in stream:
                heard_s.append(time.monotonic())
                self._heard.append((heard_s[-1], len(chunk.tokens)))
                self._first_heard.set()
            done = await stream.completion()
        return Answer(tuple(done.token_ids), done.ledger.attempts, tuple(heard_s))

    async def _until_heard(self) -> None:
        async with asyncio.timeout(self._config.timeout_s):
            await self._first_heard.wait()

    # -- the kills --------------------------------------------------------------------------

    async def _kill_all(self, client: AsyncClient, role: str) -> None:
        for _ in range(self._config.n_kills):
            await self._kill(client, role)

    async def _kill(self, client: AsyncClient, role: str) -> None:
        """Kill a worker that has requests, while another one of its role is alive."""
        await asyncio.sleep(self._random.uniform(0, self._config.most_calm_s))
        victim = await self._victim(client, role)
        at_s = time.monotonic()
        self._cluster.kill(victim.worker_id)
        await self._until_back(client, victim)
        back_s = time.monotonic()
        times = [at_s, *(s for s, _ in self._heard if at_s < s < back_s), back_s]
        kill = Kill(
            worker=victim.worker_id,
            role=role,
            at_s=at_s - self._began_s,
            requests=victim.requests,
            down_s=back_s - at_s,
            tokens=sum(n for s, n in self._heard if at_s < s < back_s),
            silence_s=max(later - earlier for earlier, later in itertools.pairwise(times)),
        )
        self.outcome.kills.append(kill)
        self._say(
            f"{kill.worker} killed with {kill.requests} requests, back after {kill.down_s:.1f} s, "
            f"{kill.tokens} tokens meanwhile"
        )

    async def _victim(self, client: AsyncClient, role: str) -> WorkerInfo:
        async with asyncio.timeout(self._config.back_s):
            while True:
                status = await asyncio.to_thread(self._cluster.status)
                alive = [w for w in status.workers if w.state == "alive" and role in w.roles]
                busy = [worker for worker in alive if worker.requests]
                if len(alive) >= 2 and busy:
                    return self._random.choice(busy)
                await asyncio.sleep(0.01)

    async def _until_back(self, client: AsyncClient, victim: WorkerInfo) -> None:
        async with asyncio.timeout(self._config.back_s):
            while True:
                for worker in (await asyncio.to_thread(self._cluster.status)).workers:
                    is_new = worker.epoch != victim.epoch and worker.state == "alive"
                    if worker.worker_id == victim.worker_id and is_new:
                        return
                await asyncio.sleep(_POLL_S)

    # -- the end ----------------------------------------------------------------------------

    async def _settle(self, client: AsyncClient, within_s: float = 30.0) -> list[str]:
        end_s = time.monotonic() + within_s
        while True:
            left = left_over(await asyncio.to_thread(self._cluster.status))
            if not left or time.monotonic() > end_s:
                return left
            await asyncio.sleep(_POLL_S)


def left_over(status: ClusterStatus) -> list[str]:
    """What an idle cluster should not have."""
    left = [f"the router still has {r.request_id}, {r.state}" for r in status.requests]
    for worker in (worker for worker in status.workers if worker.state != "gone"):
        pages = worker.pages
        if worker.state != "alive":
            left.append(f"{worker.worker_id} is {worker.state}")
        if pages.used or pages.pinned or pages.quarantined:
            left.append(f"{worker.worker_id} has {pages}")
    return left
