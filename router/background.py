"""Background tasks of a block: they are cancelled at its end, and if one fails, the block fails."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any


class Background:
    """An `asyncio.TaskGroup` that cancels its tasks at the end instead of waiting for them, and
    that raises the block's own error as it is, not in a group."""

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
