"""Puts a real cluster into a situation; every bit of its answers must be a lone engine's."""

from __future__ import annotations

import asyncio
import random
import secrets
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache

from tests.cluster.real_cluster import inspect, settled
from tests.cluster.situations import Setup, Situation
from twolane import AsyncClient, Completion, RequestInfo, Token, TopLogprob
from twolane.deploy.bundled import model_path
from twolane.engine.allocator import PageAllocator
from twolane.engine.config import EngineConfig
from twolane.engine.cpu.engine import load_engine
from twolane.engine.step import Engine, RowWork, SampledToken
from twolane.params import SamplingParams
from twolane.testing import LocalCluster, start_local

PROBE_LENGTHS = (40, 200, 600)
VOCAB = 2000
MOST_TURNS = 6
PREFILL = ("prefill-0", "prefill-1")
_P_LOST = {"resumes.prefill_worker_lost", "resumes.judged"}
SIGNS = {  # in the router's counters: one of them must have moved, or the event did not happen
    "preempted": {"resumes.preempted"},
    "prefill killed before": _P_LOST,
    "prefill killed during": _P_LOST,
    "decode killed": {"resumes.decode_worker_lost"},
}


@dataclass(frozen=True)
class Scale:
    """How much is asked for at once."""

    tokens: int  # of each compared answer
    crowd: int  # requests at once, the compared ones among them
    crowd_tokens: tuple[int, int]  # of the others' answers
    long_tokens: tuple[int, int]  # of those that are to be preempted
    tight_workers: int  # of each role, or of both, where pages are short and none dies


QUICK = Scale(24, 10, (16, 64), (60, 120), tight_workers=1)
FULL = Scale(48, 32, (32, 128), (200, 300), tight_workers=2)  # for `make soak`


@dataclass(frozen=True)
class Probe:
    """A request whose answer is known bit for bit."""

    prompt: tuple[int, ...]
    seed: int | None  # None: greedy
    n_tokens: int = QUICK.tokens

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(
            temperature=0.0 if self.seed is None else 0.9,
            seed=self.seed or 0,
            max_tokens=self.n_tokens,
            ignore_eos=True,
            top_logprobs=2,
        )


def probes(situation: Situation, turn: int, n_tokens: int = QUICK.tokens) -> list[Probe]:
    """Other prompts each time: a cold cache is cold again and again on one cluster."""
    source = random.Random(f"{situation} {turn}")
    seeded = situation.sampling == "seeded"
    prompts = [tuple(source.randrange(VOCAB) for _ in range(n)) for n in PROBE_LENGTHS]
    return [Probe(prompt, len(prompt) if seeded else None, n_tokens) for prompt in prompts]


@cache
def lone_engine(dtype: str, *, exact: bool) -> Engine:
    """It is asked for one row at a time, by one thread: nothing of those before is kept."""
    return load_engine(
        EngineConfig(
            model_dir=model_path(), dtype=dtype, exact=exact, threads=1, n_pages=64, page_tokens=16
        )
    )


@cache
def lone_answer(dtype: str, probe: Probe, *, exact: bool = True) -> tuple[Token, ...]:
    """What an engine says to this row alone, its prompt in one step."""
    engine = lone_engine(dtype, exact=exact)
    pages = PageAllocator(64).try_take(64)
    assert pages is not None
    tokens = list(probe.prompt)
    answer: list[Token] = []
    start = 0
    while len(answer) < probe.n_tokens:
        work = RowWork(
            row=1,
            token_ids=tokens,
            start=start,
            n_new=len(tokens) - start,
            pages=pages,
            n_prompt=len(probe.prompt),
            params=probe.params,
            sample=True,
        )
        (result,) = engine.run([work])
        start = len(tokens)
        answer.append(as_token(len(answer), result.tokens[0]))
        tokens.append(result.tokens[0].token)
    return tuple(answer)


def as_token(index: int, sampled: SampledToken) -> Token:
    top = tuple(TopLogprob(token, logprob) for token, logprob in sampled.top)
    return Token(index, sampled.token, sampled.logprob, top)


def n_of_each(setup: Setup, scale: Scale) -> int:
    """Workers of each role, or of both: where one may die there is another."""
    return scale.tight_workers if setup.is_tight else 2


@contextmanager
def cluster_for(setup: Setup, scale: Scale = QUICK) -> Iterator[LocalCluster]:
    is_split = setup.path != "colocated"
    n_each = n_of_each(setup, scale)
    with start_local(
        prefill=n_each if is_split else None,
        decode=n_each if is_split else None,
        colocated=0 if is_split else n_each,
        transport=[setup.path] if is_split else None,
        exact=True,
        dtype=setup.dtype,
        threads=1,
        pages=44 if setup.is_tight else 1024,  # 41 are what the longest request needs
        growth_tokens=8,
        step_tokens=setup.chunk_tokens,
        decode_rows=32,
        lease_s=2.0,
        heartbeat_s=0.3,
        suspicion_s=1.5,
    ) as cluster:
        yield cluster


async def check(cluster: LocalCluster, situation: Situation, scale: Scale = QUICK) -> None:
    """Raises AssertionError naming what differs, or what is left behind.

    Events are a matter of milliseconds: one that came too late is tried again, with other prompts.
    """
    for turn in range(MOST_TURNS):
        if await Turn(cluster, situation, turn, scale).check():
            return
    raise AssertionError(f"{situation}: it did not happen in {MOST_TURNS} turns")


class Turn:
    """One try at a situation on a cluster."""

    def __init__(
        self, cluster: LocalCluster, situation: Situation, turn: int, scale: Scale
    ) -> None:
        self.cluster = cluster
        self.situation = situation
        self.scale = scale
        self.probes = probes(situation, turn, scale.tokens)
        self.heard: Counter[str] = Counter()  # tokens that clients have got, by request id
        self._ids = [f"{secrets.token_hex(4)}-{i}" for i in range(len(self.probes))]
        self._news = asyncio.Event()
        self._has_killed = False

    async def check(self) -> bool:
        """Compare; returns whether the event happened in time."""
        await self._all_alive()
        async with self.cluster.aclient() as client:
            if self.situation.prefix == "cached":
                for probe in self.probes:
                    await client.generate(token_ids=probe.prompt, max_tokens=1)
            before = (await asyncio.to_thread(self.cluster.status)).counters
            if self.situation.event == "prefill killed before":
                self._signal_prefill(signal.SIGSTOP)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._let_it_happen(client))
                asked = [
                    group.create_task(self._ask(client, probe, request_id))
                    for probe, request_id in zip(self.probes, self._ids, strict=True)
                ]
                if self.situation.company == "crowd":
                    self._crowd(group, client)
            after = (await asyncio.to_thread(self.cluster.status)).counters
        for probe, task in zip(self.probes, asked, strict=True):
            answer = task.result()
            assert answer.tokens == lone_answer(self.situation.dtype, probe), self.situation
        await settled(self.cluster, self._n_workers - ("killed" in self.situation.event))
        if "killed" in self.situation.event and not self._has_killed:
            return False
        if self.situation.prefix == "cached" and self.situation.event == "calm":
            # A crowd may send all probes to the worker that has not seen them: then once more.
            return any(task.result().ledger.cached_tokens for task in asked)
        if self.situation.event not in SIGNS:
            return True
        happened = {name for name in after if after[name] > before.get(name, 0)}
        return bool(happened & SIGNS[self.situation.event])

    async def _ask(self, client: AsyncClient, probe: Probe, request_id: str) -> Completion:
        params = probe.params
        async with client.stream(
            request_id=request_id,
            token_ids=probe.prompt,
            temperature=params.temperature,
            seed=params.seed,
            max_tokens=params.max_tokens,
            ignore_eos=True,
            top_logprobs=2,
        ) as stream:
            async for chunk in stream:
                self.heard[request_id] += len(chunk.tokens)
                self._news.set()
            return await stream.completion()

    def _crowd(self, group: asyncio.TaskGroup, client: AsyncClient) -> None:
        source = random.Random(str(self.situation))
        # Short answers are over before there are enough of them for their pages to be short.
        is_long = self.situation.event == "preempted"
        lengths = self.scale.long_tokens if is_long else self.scale.crowd_tokens
        for _ in range(self.scale.crowd - len(self.probes)):
            group.create_task(
                client.generate(
                    token_ids=[source.randrange(VOCAB) for _ in range(source.randint(1, 250))],
                    max_tokens=source.randint(*lengths),
                    ignore_eos=True,
                )
            )

    # -- what happens -----------------------------------------------------------------------

    async def _let_it_happen(self, client: AsyncClient) -> None:
        event = self.situation.event
        if event == "prefill killed before":
            await self._kill_stopped(client)
        elif event == "prefill killed during":
            await self._kill_sending(client)
        elif event == "prefill killed after":
            while min(self.heard[request_id] for request_id in self._ids) < 2:
                await self._hear()  # a second token: its pages have landed
            self._kill_first(r.prefill_worker for r in await self._unanswered(client))
        elif event == "decode killed":
            n_tokens = random.Random(str(self.situation)).randint(1, 2 * self.scale.tokens)
            while self.heard.total() < n_tokens:
                await self._hear()
            self._kill_first(r.decode_worker for r in await self._unanswered(client))

    async def _hear(self) -> None:
        self._news.clear()
        await self._news.wait()

    async def _unanswered(self, client: AsyncClient) -> list[RequestInfo]:
        """Of the probes; none is left when we were too slow."""
        requests = (await asyncio.to_thread(self.cluster.status)).requests
        return [request for request in requests if request.request_id in self._ids]

    def _kill_first(self, names: Iterable[str]) -> None:
        """A request between two attempts has no worker."""
        for name in [name for name in names if name][:1]:
            self._kill(name)

    def _kill(self, name: str) -> None:
        self.cluster.kill(name)
        self._has_killed = True

    async def _kill_stopped(self, client: AsyncClient) -> None:
        """Both prefill workers are stopped: kill the one that has got most, wake the other."""
        names: list[str] = []
        while len(names) < len(self.probes):
            await asyncio.sleep(0.01)
            names = [
                r.prefill_worker for r in (await asyncio.to_thread(self.cluster.status)).requests
            ]
        self._kill(max(PREFILL, key=names.count))
        self._signal_prefill(signal.SIGCONT)

    def _signal_prefill(self, number: signal.Signals) -> None:
        for name in PREFILL:
            with suppress(ProcessLookupError):  # it was killed
                self.cluster.kill(name, number)

    async def _kill_sending(self, client: AsyncClient) -> None:
        """Kill a prefill worker when some chunk of a prompt is on its way and another is not."""
        endpoints = {
            w.worker_id: w.endpoint for w in (await asyncio.to_thread(self.cluster.status)).workers
        }
        while True:
            for name in PREFILL:
                look = await inspect(endpoints[name])
                if look.load.pages.pinned or self.heard.total():  # or too late, for this turn
                    self._kill(name)
                    return

    async def _all_alive(self) -> None:
        async with asyncio.timeout(60):
            while True:
                states = [
                    w.state
                    for w in (await asyncio.to_thread(self.cluster.status)).workers
                    if w.state != "gone"
                ]
                if states.count("alive") == self._n_workers and len(states) == self._n_workers:
                    return
                await asyncio.sleep(0.1)

    @property
    def _n_workers(self) -> int:
        n_roles = 1 if self.situation.path == "colocated" else 2
        return n_roles * n_of_each(self.situation.setup, self.scale)
