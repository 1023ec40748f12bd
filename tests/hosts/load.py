"""Streams of a fake engine's answers, each compared with what it must be, and how long each is
silent, in own time (`tests.own_time`)."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.own_time import Moment, OwnTime, own_time
from twolane.aclient import AsyncClient
from twolane.config import ClientConfig
from twolane.engine.fake import FakeEngineConfig, expected_answer
from twolane.errors import TwolaneError
from twolane.params import SamplingParams

VOCAB = 2048  # of the bundled model
_CONFIG = FakeEngineConfig(vocab_size=VOCAB, first_token=3)


class Silence(NamedTuple):
    """Of a stream, before its first token or between two."""

    lasted: Moment
    began: Moment  # after the load did
    stream: int
    during: str  # what went on when it began

    def __str__(self) -> str:
        lasted, began = self.lasted, self.began
        return (
            f"stream {self.stream} was silent for {lasted.own_s:.2f} s of own time "
            f"({lasted.real_s:.2f} s, {lasted.lost_s:.2f} s lost), from {began.own_s:.2f} s on "
            f"({began.real_s:.2f} s), in {self.during}"
        )


@dataclass
class Load:
    """What has happened so far. `failures` are sentences."""

    took: OwnTime  # so far
    during: str = "its beginning"  # what goes on now, to be told with a silence
    n_done: int = 0
    longest: dict[str, Silence] = field(default_factory=dict)  # in each of these
    failures: list[str] = field(default_factory=list)
    running: dict[int, tuple[Moment, str]] = field(default_factory=dict)  # when each was last heard

    def heard(self, stream: int) -> None:
        """It begins, or has said something."""
        self._note_silence(stream)
        self.running[stream] = self.took.seen, self.during

    def check(self, *, silence_s: float) -> None:
        """No answer was lost so far, and no stream was silent for so long, or is now."""
        assert not self.failures, self.failures
        self.took.look()
        for stream in self.running:
            self._note_silence(stream)
        too_long = [str(each) for each in self.longest.values() if each.lasted.own_s >= silence_s]
        assert not too_long, "\n".join(too_long)

    def _note_silence(self, stream: int) -> None:
        now = self.took.seen
        last, during = self.running.get(stream, (now, self.during))
        silence = Silence(now.since(last), last, stream, during)
        self.longest[during] = max(silence, self.longest.get(during, silence))


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
        load = Load(took)
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
    source = random.Random(number)
    prompt = [source.randrange(3, VOCAB) for _ in range(source.randrange(1, n_prompt))]
    params = SamplingParams(max_tokens=n_answer, seed=number)
    tokens: list[int] = []
    load.heard(number)
    try:
        async with client.stream(token_ids=prompt, params=params) as stream:
            async for chunk in stream:
                load.heard(number)
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
