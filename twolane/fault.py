"""Passes an unexpected exception from where it is raised to the task that ends the process with it.

An exception in an event loop's callback or in a stream's handler does not end the process: the loop
logs it, or one stream breaks, and the process would continue with inconsistent state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


class Fault:
    """The first unexpected exception of a process, or of a part of it."""

    def __init__(self) -> None:
        self._error: Exception | None = None
        self._told = asyncio.Event()

    @contextmanager
    def watch(self, *foreseen: type[Exception]) -> Iterator[None]:
        """A block whose exceptions, except the `foreseen` types, are raised by `wait`, too."""
        try:
            yield
        except foreseen:
            raise
        except Exception as error:
            self.tell(error)
            raise

    def tell(self, error: Exception) -> None:
        """Record an exception; later ones are ignored. Call it on the event loop."""
        if self._error is None:
            self._error = error
            self._told.set()

    async def wait(self) -> NoReturn:
        """Never returns. Raises the recorded exception as soon as there is one."""
        await self._told.wait()
        assert self._error is not None
        raise self._error
