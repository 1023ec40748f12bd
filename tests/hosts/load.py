"""Streams of a fake engine's answers, each compared with what it must be, and how long each is
silent, in own time (`tests.own_time`)."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.own_time import OwnTime, own_time
from twolane.aclient import AsyncClient
from twolane.config import ClientConfig
from twolane.engine.fake import FakeEngineConfig, expected_answer
from twolane.errors import TwolaneError
from twolane.params import SamplingParams

VOCAB = 2048  # of the bundled model
_CONFIG = FakeEngineConfig(vocab_size=VOCAB, first_token=3)


class Clock:
    """Own time, looked up 20 times a second at most: a look costs more than a token."""

    def __init__(self, took: OwnTime) -> None:
        self._took = took
        self._looked_at_s = self._found_s = 0.0

    def s(self) -> float:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._looked_at_s > 0.05:
            self._looked_at_s, self._found_s = now_s, self._took.s()
        return self._found_s


@dataclass
class Load:
    """What has happened so far. `failures` are sentences."""

    clock: Callable[[], float]
    n_done: int = 0
    silence_s: float = 0.0  # the longest of any stream, before its first token or between two
    failures: list[str] = field(default_factory=list)
    running: dict[int, float] = field(default_factory=dict)  # when each was last heard

    def longest_silence_s(self) -> float:
        """Also of streams that are silent now."""
        now = self.clock()
        return max([self.silence_s, *(now - at for at in self.running.values())])

    def check(self, *, silence_s: float) -> None:
        assert self.failures == []
        assert self.longest_silence_s() < silence_s


@asynccontextmanager
async def load_on(
    endpoint: str,
    config: ClientConfig | None = None,
    *,
    streams: int,
    n_prompt: int = 300,
    n_answer: int = 400,
) -> AsyncIterator[Load]:
    """So many streams at all times; those that run at the end are answered to their end."""
    numbers, is_over = itertools.count(1), asyncio.Event()
    with own_time() as took:
        load = Load(Clock(took).s)
        async with AsyncClient(endpoint, config=config) as client:

            async def ask_again_and_again() -> None:
                while not is_over.is_set():
                    await _ask(client, load, next(numbers), n_prompt, n_answer)

            async with asyncio.TaskGroup() as tasks:
                for _ in range(streams):
                    tasks.create_task(ask_again_and_again())
                try:
                    yield load
                finally:
                    is_over.set()


async def until(load: Load, n_more: int, within_s: float = 180.0) -> None:
    """So many more answers are whole."""
    wanted = load.n_done + n_more
    async with asyncio.timeout(within_s):
        while load.n_done < wanted and not load.failures:
            await asyncio.sleep(0.02)


async def _ask(client: AsyncClient, load: Load, number: int, n_prompt: int, n_answer: int) -> None:
    clock = load.clock
    source = random.Random(number)
    prompt = [source.randrange(3, VOCAB) for _ in range(source.randrange(1, n_prompt))]
    params = SamplingParams(max_tokens=n_answer, seed=number)
    tokens: list[int] = []
    load.running[number] = clock()
    try:
        async with client.stream(token_ids=prompt, params=params) as stream:
            async for chunk in stream:
                load.silence_s = max(load.silence_s, clock() - load.running[number])
                load.running[number] = clock()
                for token in chunk.tokens:
                    if token.index != len(tokens):
                        load.failures.append(
                            f"stream {number}: token {token.index} after {len(tokens)}"
                        )
                    tokens.append(token.token_id)
    except TwolaneError as error:
        load.failures.append(f"stream {number} after {len(tokens)} tokens: {error!r}")
        return
    finally:
        del load.running[number]
    if tokens != expected_answer(prompt, params, n_answer, config=_CONFIG):
        load.failures.append(f"stream {number}: {len(tokens)} tokens, not what they must be")
    load.n_done += 1
