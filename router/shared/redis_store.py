"""A `Store` in a Redis that several routers share.

    admit ── waits 50 ms at most ───────────────────────────────▶ ┌───────┐
    release, place, note_prefix ──▶ queue ──▶ one writing task ──▶│ Redis │
    own keys every 5 s, own record every second ─────▲            └───────┘
    find ── waits 50 ms at most ────────────────────────────────▶     │
    listen ◀── notes of other routers, on a separate connection ──────┘

A failure of any of these opens the circuit (`twolane.router.shared.circuit`): until the writing
task gets an answer, nothing else calls the store. Then everything that the store may have lost or
missed is written again: a server that was flushed, replaced by its replica or restored from an old
file has the present state after at most 5 s, and outdated keys expire.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from redis.exceptions import RedisError

from twolane.router.background import Background
from twolane.router.requests.request import Label
from twolane.router.shared import commands
from twolane.router.shared.circuit import Circuit
from twolane.router.shared.commands import Command, Commands, Own
from twolane.router.shared.config import StoreConfig
from twolane.router.shared.connect import StoreClient
from twolane.router.shared.keys import Keys
from twolane.router.shared.prefix_reader import read_prefixes
from twolane.router.store import (
    ADMITTED,
    Ask,
    Found,
    Health,
    Held,
    LocalStore,
    Placement,
    PrefixSink,
    RouterRecord,
    Verdict,
)
from twolane.security.keys import TenantLimits

log = logging.getLogger(__name__)
EVENTS_S = 1.0  # for the events of the past


class RedisStore:
    """Use as an async context manager. Entering it tries the store once; the store may be down."""

    def __init__(self, config: StoreConfig, router_id: str, epoch: int) -> None:
        self._config = config
        self._record = RouterRecord(router_id=router_id, epoch=epoch)
        self._commands = Commands(self._record.name, Keys(config.cluster))
        self._keys = Keys(config.cluster)
        self._client = StoreClient(config.address, router_id, config.socket_s)
        self._circuit = Circuit()
        self._local = LocalStore()
        self._own: dict[str, Own] = {}  # by submission
        self._unanswered: set[str] = set()  # those of them that the store is still asked for
        self._others: tuple[RouterRecord, ...] = ()
        self._n_routers = 1
        self._queue: deque[Command] = deque()
        self._dropped = 0
        self._wake = asyncio.Event()
        self._asking = asyncio.Semaphore(config.asks_at_once)
        self._here_due = self._keep_due = 0.0
        self._clock_off_s = 0.0
        self._tasks = Background()

    async def __aenter__(self) -> RedisStore:
        await self._client.__aenter__()
        await self._tasks.__aenter__()
        await self._say_here()
        self._tasks.start(self._write_forever(), name="store-writer")
        self._tasks.start(self._watch_clock(), name="store-clock")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.is_closing = True
        try:
            await self._tasks.__aexit__(kind, error, trace)
            self.event("router-stopped", self._record.name)
            self._queue.extend(self._commands.gone())
            if self._circuit.is_up:
                async with asyncio.timeout(self._config.stop_s):
                    while self._queue and self._circuit.is_up:
                        await self._write_some()
        except TimeoutError:
            log.info("the store did not take the last writes in time")
        finally:
            await self._client.__aexit__(kind, error, trace)

    @property
    def health(self) -> Health:
        circuit = self._circuit
        return Health(
            address=str(self._config.address),
            is_up=circuit.is_up,
            note=circuit.why,
            dropped=self._dropped,
            clock_off_s=self._clock_off_s,
        )

    @property
    def quota_parts(self) -> int:
        return 1 if self._circuit.is_up else max(1 + len(self._others), self._n_routers)

    async def admit(self, ask: Ask) -> Verdict:
        name = ask.submission_id
        if name in self._unanswered:
            return Held(name)
        verdict = self._local.claim(ask.label, name)
        if verdict is not ADMITTED or not self._circuit.is_up:
            if verdict is ADMITTED:
                self._own.setdefault(name, Own(ask.label, ask.limits))
            return verdict
        own = self._own[name] = Own(ask.label, ask.limits, ask.n_tokens)
        self._unanswered.add(name)
        try:
            answer = await self._ask(self._commands.admit(ask))
        except asyncio.CancelledError:
            self.release(name, 0)  # the server may have admitted it
            raise
        finally:
            self._unanswered.discard(name)
        if answer is None:
            own.n_taken = 0.0
            return ADMITTED
        verdict = commands.verdict(answer)
        if verdict is not ADMITTED:
            self._local.release(name, 0)
            self._own.pop(name, None)  # it may have been released meanwhile
        return verdict

    def own(self, label: Label, submission_id: str, limits: TenantLimits, n_charged: float) -> None:
        self._local.own(label, submission_id, limits, n_charged)
        self._own.setdefault(submission_id, Own(label, limits, n_charged))

    def release(self, submission_id: str, n_tokens: int) -> None:
        self._local.release(submission_id, n_tokens)
        own = self._own.pop(submission_id, None)
        if own is not None:
            self._put(self._commands.release(submission_id, own, n_tokens))

    def place(self, submission_id: str, placement: Placement) -> None:
        own = self._own.get(submission_id)
        if own is not None:
            own.placement = placement
            self._put(self._commands.keep(submission_id, own))

    async def find(self, submission_id: str) -> Found | None:
        if not self._circuit.is_up:
            return None
        answer = await self._ask(self._commands.find(submission_id))
        return None if answer is None else commands.found(answer)

    def routers(self) -> Sequence[RouterRecord]:
        return self._others

    def introduce(self, record: RouterRecord) -> None:
        assert record.name == self._record.name
        self._record = record
        self._here_due = 0.0
        self.event("router-started", f"{record.name} {record.endpoint}")

    def note_routers(self, n: int) -> None:
        self._n_routers = n

    def note_prefix(self, hashes: Sequence[int], epoch: int) -> None:
        if hashes:
            self._put(self._commands.note_prefix(hashes, epoch))

    def listen(self, sink: PrefixSink) -> None:
        reader = read_prefixes(self._client, self._keys, self._record.name, sink)
        self._tasks.start(reader, name="store-reader")

    def event(self, kind: str, text: str) -> None:
        """Write an event of the store itself to its stream of events."""
        self._put(self._commands.event(kind, text))

    def keep_event(self, kind: str, event: bytes) -> None:
        self._put(self._commands.event(kind, "", event))

    async def events(self, most: int) -> Sequence[bytes]:
        if not self._circuit.is_up:
            return ()
        # may take longer than a request may wait, and no request waits for it
        answer = await self._try(self._client.run(self._commands.events(most)), EVENTS_S)
        return () if answer is None else commands.events(answer)

    def _put(self, command: Command) -> None:
        if len(self._queue) >= self._config.queued:
            self._queue.popleft()
            self._dropped += 1
        self._queue.append(command)
        self._wake.set()

    async def _ask(self, command: Command) -> Any:
        """The store's answer to a request's command; None if there was none in time."""
        return await self._try(self._asked(command), self._config.ask_s)

    async def _asked(self, command: Command) -> Any:
        async with self._asking:
            return await self._client.run(command)

    async def _try(self, work: Awaitable[Any], within_s: float) -> Any:
        """The store's answer; None if the call fails, which opens the circuit."""
        try:
            async with asyncio.timeout(within_s):
                return await work
        except (RedisError, OSError, TimeoutError) as error:
            self._failed(error, within_s)
            return None

    def _failed(self, error: Exception, within_s: float) -> None:
        text = str(error) or f"no answer within {within_s:g} s"
        if self._circuit.failed(text, self._now()):
            log.warning("the store at %s is down: %s", self._config.address, text)

    async def _write_forever(self) -> None:
        while not self._client.is_closing:
            now = self._now()
            if self._circuit.may_try(now) and now >= self._here_due:
                await self._say_here()
            if self._circuit.is_up and now >= self._keep_due:
                await self._say_own()
            if self._circuit.is_up and self._queue:
                await asyncio.sleep(self._config.batch_s)
                await self._write_some()
            else:
                await self._pause()

    async def _pause(self) -> None:
        """Wait until there is something to write, or a periodic write is due."""
        now = self._now()
        circuit = self._circuit
        due = min(self._here_due, self._keep_due) if circuit.is_up else self._here_due
        due = max(due, circuit.try_at)
        pause_s = min(max(due - now, 0.0), self._config.here_s)
        timer = asyncio.get_running_loop().call_later(pause_s, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
            self._wake.clear()

    async def _say_here(self) -> None:
        """Write this router's record, and read those of the others. Its success also closes the
        circuit when the store is back."""
        self._here_due = self._now() + self._config.here_s
        command = self._commands.here(self._record)
        answer = await self._try(self._client.run(command), 2 * self._config.socket_s)
        if answer is None:
            return
        self._others = tuple(
            record for record in commands.routers(answer) if record.name != self._record.name
        )
        if self._circuit.answered():
            log.info("the store at %s is up", self._config.address)
            self.event("store-up", self._record.name)
            self._keep_due = 0.0

    async def _say_own(self) -> None:
        """Rewrite everything that the store should have about this router's submissions."""
        self._keep_due = self._now() + self._config.keep_s
        # what the store has been told of, it admits without asking for its quotas
        names = [name for name in self._own if name not in self._unanswered]
        for first in range(0, len(names), self._config.batch):
            some = names[first : first + self._config.batch]
            kept = [(name, self._own[name]) for name in some if name in self._own]
            await self._write([self._commands.keep(name, own) for name, own in kept])

    async def _watch_clock(self) -> None:
        """How far the store's clock is off ours: leases and quotas go by it. A failure is
        dropped here: calls that need an answer find it themselves."""
        while not self._client.is_closing:
            await asyncio.sleep(self._config.keep_s)
            asked = time.time()
            with suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(2 * self._config.socket_s):
                    seconds, microseconds = map(int, await self._client.run(("TIME",)))
                self._clock_off_s = seconds + microseconds / 1e6 - (asked + time.time()) / 2

    async def _write_some(self) -> None:
        n = min(len(self._queue), self._config.batch)
        await self._write([self._queue.popleft() for _ in range(n)])

    async def _write(self, batch: Sequence[Command]) -> None:
        """Write a batch in one pipeline. Writes that fail are lost; `_say_own` writes their state
        again."""
        if batch and self._circuit.is_up:
            # each reply has the socket's timeout, and all of them together this one
            await self._try(self._client.run_all(batch), 4 * self._config.socket_s)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
