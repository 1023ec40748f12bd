"""From wherever a law of ours breaks to the task that ends the process with it.

Callbacks of an event loop, and handlers of streams, have nobody above them whom an exception would
end: without this the loop logs it, or one stream breaks, and the process goes on with books that
are wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


class Fault:
    """One process's, or one part's, first exception that nobody foresaw."""

    def __init__(self) -> None:
        self._error: Exception | None = None
        self._told = asyncio.Event()

    @contextmanager
    def watch(self, *foreseen: type[Exception]) -> Iterator[None]:
        """Whatever else is raised inside is what `wait` raises, too."""
        try:
            yield
        except foreseen:
            raise
        except Exception as error:
            self.tell(error)
            raise

    def tell(self, error: Exception) -> None:
        """The first one counts. On the event loop."""
        if self._error is None:
            self._error = error
            self._told.set()

    async def wait(self) -> NoReturn:
        """Never returns: raises what was told."""
        await self._told.wait()
        assert self._error is not None
        raise self._error
