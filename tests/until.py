"""Waits until something holds, instead of for a time that somebody has guessed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

WITHIN_S = 60.0  # far more than anything takes on a busy machine


async def until(
    holds: Callable[[], object],
    what: str = "what is waited for",
    within_s: float = WITHIN_S,
    *,
    every_s: float = 0.005,
    is_slow: bool = False,
) -> None:
    """Return once `holds` returns something true; TimeoutError if it does not in time. With
    `is_slow` it is called in a thread, and may block. Also in virtual time."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + within_s
    while not (await asyncio.to_thread(holds) if is_slow else holds()):
        if loop.time() > end_s:
            raise TimeoutError(f"never: {what}")
        await asyncio.sleep(every_s)


def wait_until(
    holds: Callable[[], object],
    what: str = "what is waited for",
    within_s: float = WITHIN_S,
    *,
    every_s: float = 0.01,
) -> None:
    """The same, where there is no event loop."""
    end_s = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end_s:
            raise TimeoutError(f"never: {what}")
        time.sleep(every_s)
