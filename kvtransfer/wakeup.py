"""From a transport's thread to the event loop, without either waiting for the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Wakeup:
    """Calls `handler` on the loop soon after `__call__`, once for many calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop, handler: Callable[[], None]) -> None:
        self._loop = loop
        self._handler = handler
        self._is_set = False

    def __call__(self) -> None:
        """From any thread, while the loop is open."""
        if not self._is_set:
            self._is_set = True
            self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._is_set = False  # before the handler: what comes from now on calls again
        self._handler()
