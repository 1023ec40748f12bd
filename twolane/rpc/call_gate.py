"""Bounds open calls and unread messages before a handler runs, and reads a call's message.

    call ──> open calls of its connection ──> calls whose message is awaited ──> handler

A refusal is typed and is sent without reading the message. Clients that stall harm no others:
beyond `slow_messages` of them, the call that has stalled longest is refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from grpc.aio import EOF

from twolane.errors import DeadlineError, OverloadedError

Context = Any  # grpc.aio.ServicerContext; the stubs leave half of it out

SLOW_S = 1.0  # a message that takes longer is a slow one


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGateConfig:
    """Bounds of one server. Refusals ask clients to retry after `retry_after_s`."""

    calls_per_connection: int = 2048  # open at once, 45 kB each
    unread_calls: int = 1024  # whose message has not arrived completely; more are refused
    slow_messages: int = 32  # that may take longer than a second to arrive
    message_s: float = 10.0  # from a call's start to the end of its message
    retry_after_s: float = 1.0


class CallGate:
    """All handlers of one server share it. Not thread-safe: for one event loop."""

    def __init__(self, config: CallGateConfig) -> None:
        self.config = config
        self._open: Counter[str] = Counter()  # calls by connection
        self.refused: Counter[str] = Counter()  # calls refused before their handler ran, by reason
        self.n_unread = 0
        self._slow: dict[asyncio.Timeout, None] = {}  # slow messages, oldest first

    @asynccontextmanager
    async def entered(self, context: Context) -> AsyncIterator[None]:
        """Count an open call of its connection within the block. Raises `OverloadedError` if the
        connection has too many."""
        peer = context.peer()
        self.enter(peer)
        try:
            yield
        finally:
            self.leave(peer)

    def enter(self, peer: str) -> None:
        """As `entered`, until `leave` is called: each request multiplexed on one stream counts as a
        call."""
        bound = self.config.calls_per_connection
        if self._open[peer] >= bound:
            raise OverloadedError(
                f"this connection has {bound} calls open; wait for one to end, or open another",
                retry_after_s=self.config.retry_after_s,
                metadata={"bound": str(bound)},
            )
        self._open[peer] += 1

    def leave(self, peer: str) -> None:
        """Count one open call less. Call it once for each `enter`."""
        self._open[peer] -= 1
        if not self._open[peer]:
            del self._open[peer]

    async def try_read(self, context: Context) -> bytes | None:
        """Read the call's next message; None if its client sends no more. Raises `OverloadedError`,
        and `DeadlineError` if the message does not arrive in time."""
        config, loop = self.config, asyncio.get_running_loop()
        if self.n_unread >= config.unread_calls:
            raise OverloadedError(
                f"{config.unread_calls} calls have not sent their message completely yet",
                retry_after_s=config.retry_after_s,
                metadata={"bound": str(config.unread_calls)},
            )
        began = loop.time()
        timeout = asyncio.timeout(config.message_s)
        self.n_unread += 1
        becomes_slow = loop.call_later(SLOW_S, self._add_slow, timeout)
        try:
            async with timeout:
                raw: Any = await context.read()
        except TimeoutError:
            waited_s = loop.time() - began
            raise DeadlineError(
                f"the message of this call has not arrived within {waited_s:.1f} s",
                metadata={"waited_s": f"{waited_s:.1f}"},
            ) from None
        finally:
            self.n_unread -= 1
            becomes_slow.cancel()
            self._slow.pop(timeout, None)
        return None if raw is EOF else raw

    def _add_slow(self, timeout: asyncio.Timeout) -> None:
        """Count a slow message. If there are too many, the oldest one's call is refused."""
        self._slow[timeout] = None
        if len(self._slow) > self.config.slow_messages:
            oldest = next(iter(self._slow))
            del self._slow[oldest]
            if not oldest.expired():
                oldest.reschedule(asyncio.get_running_loop().time())
