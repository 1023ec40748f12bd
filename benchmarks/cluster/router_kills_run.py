"""Kills routers under SDK streams, and compares every answer with that of an undisturbed run.

A third of the kills come while the shared store is down, a third with that of a worker within
100 ms.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cluster.stop_string import stop_string
from tests.cluster.real_cluster import fake_model, settled
from tests.ports import router_ports
from tests.redis_servers import RedisServer, redis_server
from twolane import AsyncClient, Chunk, Completion
from twolane.testing import LocalCluster, start_local

N_ROUTERS, WORKERS = 3, ("prefill-0", "prefill-1", "decode-0", "decode-1")
QUICK: dict[str, Any] = {"heartbeat_s": 0.2, "suspicion_s": 0.6, "lease_s": 1.2}
# What a stream asks for, and of how many tokens the text is that stops it; 0: it has no such text.
KINDS: list[tuple[dict[str, Any], int]] = [
    ({"temperature": 0}, 0),
    ({"temperature": 0}, 1),
    ({"temperature": 0.8, "seed": 5}, 0),
    ({"temperature": 0.8, "seed": 9}, 4),
    ({"temperature": 0, "top_logprobs": 2}, 0),
    ({"temperature": 0, "top_logprobs": 2}, 4),
]
N_TOKENS, STEP_S = 80, 0.04
# After the last answer. A worker keeps a row whose router is gone for 10 s, with its pages, for the
# router that takes it over; a row that no client asks for any more ends then.
PAGES_FREE_S = 12.0


@dataclass
class Seen:
    """`gaps_s` are the longest of each answer that another router took over; `lost_gaps_s` the
    same where its row was lost too."""

    kills: int = 0
    kills_without_store: int = 0
    kills_with_a_worker: int = 0
    answers: int = 0
    takeovers: int = 0
    stopped_after_takeover: int = 0  # answers that their stop string ended at another router
    gaps_s: list[float] = field(default_factory=list)
    lost_gaps_s: list[float] = field(default_factory=list)
    others_s: list[float] = field(default_factory=list)  # of answers whose router lived
    settled_after_s: float | None = None  # no page and no row was left of any answer

    def note(self, answer: Completion, gap_s: float) -> None:
        """Count an answer, whose longest gap that was."""
        self.answers += 1
        self.takeovers += answer.ledger.takeovers
        if not answer.ledger.takeovers:
            self.others_s.append(gap_s)
            return
        self.stopped_after_takeover += answer.finish_reason == "stop"
        (self.gaps_s if answer.ledger.attempts == 1 else self.lost_gaps_s).append(gap_s)


class RouterKills:
    """One run, over a cluster that serves."""

    def __init__(
        self,
        cluster: LocalCluster,
        redis: RedisServer,
        n_streams: int,
        after_kill: Callable[[Seen], None] = lambda seen: None,
    ) -> None:
        """`after_kill` is called when what was killed serves again."""
        self.seen = Seen()
        self._after_kill = after_kill
        self._cluster = cluster
        self._redis = redis
        self._n_streams = n_streams
        self._asked: dict[int, dict[str, Any]] = {}
        self._expected: dict[int, tuple[Any, ...]] = {}
        self._is_over = False
        self._random = random.Random(7)

    async def run(
        self, n_kills: int, *, most: int = 0, shows: Callable[[Seen], object] = bool
    ) -> Seen:
        """Kill so many, and then go on until `shows` of what was seen, up to `most`: which router
        has which stream is left to the kernel. Raises AssertionError if an answer differs, or if a
        worker still holds a row or a page `PAGES_FREE_S` after the last answer: of its own time, so
        a machine that stands still for a while costs none of it."""
        async with asyncio.TaskGroup() as asking:
            for number in range(self._n_streams):
                asking.create_task(self._undisturbed(number))
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._n_streams):
                tasks.create_task(self._stream(number))
            try:
                for nth in range(max(n_kills, most)):
                    if nth >= n_kills and shows(self.seen):
                        break
                    await self._kill(nth)
                    self.seen.kills += 1
                    self._after_kill(self.seen)
            finally:
                self._is_over = True
        began = time.monotonic()
        await settled(self._cluster, len(WORKERS), within_s=PAGES_FREE_S)
        self.seen.settled_after_s = round(time.monotonic() - began, 2)
        return self.seen

    async def _undisturbed(self, number: int) -> None:
        """Ask once, and decide by the text what stops the answers from now on."""
        kind, n_stop_tokens = KINDS[number % len(KINDS)]
        asked = self._asked[number] = {"seed": number} | kind
        async with AsyncClient(self._cluster.endpoint) as client:
            answer, chunks, _ = await self._ask(client, number)
            if n_stop_tokens:
                text = stop_string([chunk.text for chunk in chunks], n_stop_tokens)
                whole, asked["stop"] = answer, [text]
                answer, _, _ = await self._ask(client, number)
                assert answer.finish_reason == "stop"
                assert answer.text == whole.text[: whole.text.index(text)]
                assert len(answer.tokens) < len(whole.tokens)
        assert not answer.ledger.takeovers
        self._expected[number] = told(answer)

    async def _stream(self, number: int) -> None:
        seen = self.seen
        while True:
            async with AsyncClient(self._cluster.endpoint) as client:
                for _ in range(5):
                    answer, _, gap_s = await self._ask(client, number)
                    assert told(answer) == self._expected[number], f"stream {number}"
                    seen.note(answer, gap_s)
                    if self._is_over:
                        return

    async def _ask(
        self, client: AsyncClient, number: int
    ) -> tuple[Completion, Sequence[Chunk], float]:
        """The answer, its parts, and the longest time between two of them."""
        asked = self._asked[number]
        stream = client.stream(f"prompt {number}", max_tokens=N_TOKENS, ignore_eos=True, **asked)
        chunks: list[Chunk] = []
        last, longest_s = 0.0, 0.0
        async for chunk in stream:
            chunks.append(chunk)
            now = time.monotonic()
            longest_s = max(longest_s, now - (last or now))
            last = now
        return await stream.completion(), chunks, longest_s

    async def _kill(self, nth: int) -> None:
        cluster, names = self._cluster, [f"router-{nth % N_ROUTERS}"]
        n_events, kind = len(cluster.events), (nth + nth // N_ROUTERS) % 3
        if kind == 1:
            self._redis.kill()
            self.seen.kills_without_store += 1
        cluster.kill(names[0])
        if kind == 2:
            await asyncio.sleep(self._random.uniform(0.0, 0.1))
            names.append(WORKERS[nth % len(WORKERS)])
            cluster.kill(names[1])
            self.seen.kills_with_a_worker += 1
        for name in names:
            await asyncio.to_thread(
                cluster.wait_for, "started", name, after=n_events, timeout_s=300
            )
        if kind == 1:
            await asyncio.to_thread(self._redis.start)
        await asyncio.sleep(0.5)  # some answers at the router that is back; none depends on it


@contextmanager
def kill_cluster(
    folder: Path, times: dict[str, Any] = QUICK
) -> Iterator[tuple[LocalCluster, RedisServer]]:
    """Three routers with a store, and workers that take a step in `STEP_S`."""
    model = fake_model(folder, fake_step_s=STEP_S, fake_paced=True)
    more: dict[str, Any] = {"routers": N_ROUTERS, "prefill": 2, "decode": 2, **times}
    more |= router_ports(N_ROUTERS)
    (folder / "redis").mkdir()
    with (
        redis_server(folder / "redis") as redis,
        start_local(model=model, engine="fake", store=redis.url, **more) as cluster,
    ):
        yield cluster, redis


def told(answer: Completion) -> tuple[Any, ...]:
    """What must be equal in an undisturbed run."""
    logprobs = [(token.logprob, token.top_logprobs) for token in answer.tokens]
    return answer.token_ids, answer.text, answer.finish_reason, logprobs
