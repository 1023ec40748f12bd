"""Tells a cancelled task from a cancelled call: grpc.aio raises asyncio.CancelledError for both."""

from __future__ import annotations

import asyncio


def is_own_task_cancelled() -> bool:
    """Whether this task is cancelled. If not, a CancelledError that it meets is a call's: that
    was cancelled, or its channel closed."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
