"""Stops the processes of a cluster in order, within one grace period."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from twolane.deploy.errors import NotProvenError
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.launch.launcher import Launcher
from twolane.deploy.process.handshake import Handle


async def stop_in_order(
    launcher: Launcher,
    groups: Collection[Collection[Handle]],
    *,
    grace_s: float,
    margin_s: float,
    hurry: asyncio.Event,
    tell: Callable[[Event], None],
) -> None:
    """Stop one group after the other. All share the grace period, but each has `margin_s` at least.
    Returns at once when `hurry` is set. Of a process that may still run, an event says so."""
    now = asyncio.get_running_loop().time
    until = now() + grace_s + margin_s

    async def stop_all() -> None:
        for handles in groups:
            left_s = max(margin_s, until - now())
            async with asyncio.TaskGroup() as group:
                for handle in handles:
                    group.create_task(_stop_one(launcher, handle, left_s, tell))

    stopping = asyncio.create_task(stop_all())
    hurried = asyncio.create_task(hurry.wait())
    await asyncio.wait({stopping, hurried}, return_when=asyncio.FIRST_COMPLETED)
    for task in (stopping, hurried):
        task.cancel()
    for outcome in await asyncio.gather(stopping, hurried, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome


async def _stop_one(
    launcher: Launcher, handle: Handle, grace_s: float, tell: Callable[[Event], None]
) -> None:
    try:
        await launcher.stop(handle, grace_s)
    except NotProvenError as error:
        text = f"it may still run: {error}"
        tell(Event(kind=Kind.LOST, name=handle.name, epoch=handle.epoch, text=text))
