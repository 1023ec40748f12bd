"""Whether a client reads what is written to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ReaderWatch:
    """Calls `on_silent` once the peer of a transport takes no byte of what is written for
    `within_s`."""

    def __init__(
        self, transport: asyncio.Transport, within_s: float, on_silent: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._within_s = within_s
        self._on_silent = on_silent
        self._timer: asyncio.TimerHandle | None = None
        self._n_unread = 0  # bytes that were not taken when the timer was set

    def start(self) -> None:
        """Watch until all is taken. Only while nothing more is written: writing is paused, or an
        answer is complete."""
        if self._timer is None and (n := self._transport.get_write_buffer_size()):
            self._n_unread = n
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._within_s, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._n_unread <= self._transport.get_write_buffer_size():
            self._on_silent()
        else:
            self.start()
