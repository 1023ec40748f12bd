"""A `Link` in memory: a test double of a gRPC stream, with latency and disconnects, for virtual
time."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from twolane.rpc.link import LinkBrokenError

OutT = TypeVar("OutT")
InT = TypeVar("InT")


class MemoryLink(Generic[OutT, InT]):
    """One end of a pair made by `link_pair`. Delivers in order after `latency_s`.

    `break_now(why)` on either end acts like a stream reset: messages in flight are lost. This end
    is broken at once, the other one after the latency.
    """

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s
        self._peer: MemoryLink[InT, OutT]
        self._in_flight: deque[OutT] = deque()
        self._inbox: deque[InT] = deque()
        self._wake = asyncio.Event()
        self._why = ""

    def send(self, message: OutT) -> None:
        if self._why:
            raise LinkBrokenError(self._why)
        # Timers due at the same moment fire in any order, but messages must stay in order: each
        # timer delivers the oldest one.
        self._in_flight.append(message)
        asyncio.get_running_loop().call_later(self._latency_s, self._deliver_oldest)

    async def receive(self) -> InT:
        while not self._inbox:
            if self._why:
                raise LinkBrokenError(self._why)
            self._wake.clear()
            await self._wake.wait()
        return self._inbox.popleft()

    def close(self) -> None:
        self.break_now("closed by peer")

    def break_now(self, why: str) -> None:
        if self._why:
            return
        self._break(why)
        asyncio.get_running_loop().call_later(self._latency_s, self._peer._break, why)

    async def wait_broken(self) -> str:
        """Wait until the link breaks; returns the reason."""
        while not self._why:
            self._wake.clear()
            await self._wake.wait()
        return self._why

    def _deliver_oldest(self) -> None:
        message = self._in_flight.popleft()
        if not self._peer._why:
            self._peer._inbox.append(message)
            self._peer._wake.set()

    def _break(self, why: str) -> None:
        if not self._why:
            self._why = why
            self._wake.set()


def link_pair(
    latency_s: float = 0.0005,
) -> tuple[MemoryLink[OutT, InT], MemoryLink[InT, OutT]]:
    """Two connected ends."""
    here: MemoryLink[OutT, InT] = MemoryLink(latency_s)
    there: MemoryLink[InT, OutT] = MemoryLink(latency_s)
    here._peer, there._peer = there, here
    return here, there
