"""Wakes the event loop from a transport's thread; neither waits for the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from twolane.fault import Fault


class Wakeup:
    """Calls `handler` on the loop soon after `__call__`, once for many calls. What the handler
    raises goes to `fault`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, handler: Callable[[], None], fault: Fault
    ) -> None:
        self._loop = loop
        self._handler = handler
        self._fault = fault
        self._is_set = False

    def __call__(self) -> None:
        """From any thread, while the loop is open."""
        if not self._is_set:
            self._is_set = True
            self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._is_set = False  # before the handler runs: later events call it again
        with self._fault.watch():
            self._handler()
