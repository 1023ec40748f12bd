"""Writes the events of one call, from the router's flush directly to the connection's transport.

    first ──> head, first events ──> rest: on_news ──> take ──> reply.events ──> ChunkWriter
     through ASGI                             │ the transport's buffer is full
                                              └── block … unblock, then everything that waited

No task is woken for a token, and no token passes through the application's layers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from twolane.router.deliveries import Delivery
from twolane.router.doors.http.chunk_writer import ChunkWriter
from twolane.router.doors.http.reply import Reply


class EventStream:
    """The stream of all choices of one call. Call `first`, then `rest`, unless the reply is over
    after the first.

    Both raise the `TwolaneError` of a choice that fails; earlier events are not lost. Between the
    two calls nothing is taken from the deliveries, whose bounds for slow readers apply.
    """

    __slots__ = ("_deliveries", "_end", "_is_blocked", "_reply", "_writer")

    def __init__(self, deliveries: Sequence[Delivery], reply: Reply, writer: ChunkWriter) -> None:
        self._deliveries = tuple(deliveries)
        self._reply = reply
        self._writer = writer
        self._is_blocked = False
        self._end: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def first(self) -> bytes:
        """Wait for the first events; the status can be chosen until then."""
        wake = asyncio.Event()
        for delivery in self._deliveries:
            delivery.on_news = wake.set
        wake.set()
        while True:
            await wake.wait()
            wake.clear()
            each = [self._take(index) for index in range(len(self._deliveries))]
            if events := b"".join(each):
                self._block()
                return events
            self._raise_errors()

    async def rest(self) -> bytes:
        """Write events as they come. Returns the last ones, when there are no more."""
        for index, delivery in enumerate(self._deliveries):
            delivery.on_news = partial(EventStream._push, self, index)
        self._writer.on_pause, self._writer.on_resume = self._block, self._unblock
        try:
            if not self._writer.is_paused:
                self._unblock()
            return await self._end
        finally:
            self._writer.release()

    def _push(self, index: int) -> None:
        """Write the news of a choice. Any error ends only this call."""
        if self._is_blocked or self._end.done():
            return
        try:
            events = self._take(index)
            if self._reply.is_over:
                self._end.set_result(events)
                return
            if events:
                self._writer.write(events)
            if self._deliveries[index].is_over:
                self._raise_errors()
        except Exception as error:  # noqa: BLE001  raised by `rest`
            self._end.set_exception(error)

    def _take(self, index: int) -> bytes:
        piece = self._deliveries[index].take()
        return b"" if piece is None else self._reply.events(index, piece)

    def _raise_errors(self) -> None:
        for delivery in self._deliveries:
            if delivery.is_over and delivery.error is not None:
                raise delivery.error

    def _block(self) -> None:
        self._is_blocked = True
        for delivery in self._deliveries:
            delivery.block()

    def _unblock(self) -> None:
        self._is_blocked = False
        try:
            for delivery in self._deliveries:
                delivery.unblock()
        except Exception as error:  # noqa: BLE001  as above
            if not self._end.done():
                self._end.set_exception(error)
        for delivery in self._deliveries:
            delivery.on_news()
