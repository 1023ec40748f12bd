"""Stops the processes of a cluster in order, within one grace period."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress

from twolane.deploy.errors import DeposedError, NotProvenError, first_error
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.launch.launcher import Hosts, Launcher
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
    Returns at once when `hurry` is set. Of a process that may still run, an event says so. Raises
    `DeposedError`."""
    now = asyncio.get_running_loop().time
    until = now() + grace_s + margin_s

    async def stop_all() -> None:
        for handles in groups:
            left_s = max(margin_s, until - now())
            async with asyncio.TaskGroup() as group:
                for handle in handles:
                    group.create_task(_stop_one(launcher, handle, left_s, tell))

    try:
        await until_set(hurry, stop_all())
    except* DeposedError as errors:
        raise first_error(errors) from None


async def stop_on_hosts(hosts: Hosts, *, grace_s: float, hurry: asyncio.Event) -> None:
    """Stop all else that runs on the hosts, also of earlier launchers. `Hosts.left` says afterwards
    what may still run. Raises `DeposedError`."""
    with suppress(NotProvenError):
        await until_set(hurry, hosts.end_others((), grace_s))


async def until_set(event: asyncio.Event, work: Coroutine[None, None, None]) -> None:
    """Await `work`; once the event is set, it is cancelled. Raises what it raises."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        waiting.cancel()
        await asyncio.wait({working, waiting})
    if not working.cancelled() and (error := working.exception()) is not None:
        raise error


async def _stop_one(
    launcher: Launcher, handle: Handle, grace_s: float, tell: Callable[[Event], None]
) -> None:
    try:
        await launcher.stop(handle, grace_s)
    except NotProvenError as error:
        text = f"it may still run: {error}"
        tell(Event(kind=Kind.LOST, name=handle.name, epoch=handle.epoch, text=text))
