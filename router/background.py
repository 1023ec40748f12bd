"""Tasks that live as long as a block: cancelled at its end; a failure of one fails the block."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any


class Background:
    """An `asyncio.TaskGroup` that does not wait for its tasks but ends them, and that lets the
    block's own error through as it is, not in a group."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Background:
        await self._group.__aenter__()
        return self

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in list(self._tasks):
            task.cancel()
        if kind is not None and not issubclass(kind, asyncio.CancelledError):
            kind = error = trace = None
        await self._group.__aexit__(kind, error, trace)
