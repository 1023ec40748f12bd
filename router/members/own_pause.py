"""Silence of workers while this router itself did not run: a stopped process, a machine that was
paused, or an event loop that was busy. What they said meanwhile is still to be read."""

from __future__ import annotations

import asyncio
import logging

from twolane.router.members.member import MemberState
from twolane.router.members.membership import Membership

log = logging.getLogger(__name__)


async def sleep(seconds: float) -> float:
    """Sleep, and return by how many seconds it took longer."""
    loop = asyncio.get_running_loop()
    due = loop.time() + seconds
    await asyncio.sleep(seconds)
    return max(0.0, loop.time() - due)


def excuse_silence(members: Membership, late_s: float, now: float) -> None:
    """Take those seconds off the silence of workers at `now`, if this router comes back after so
    many that it may take its own pause for theirs."""
    if late_s <= members.config.suspicion_s / 2:
        return
    log.warning("this router has not run for %.1f s: no worker is suspected for them", late_s)
    for member in members:
        if member.state in (MemberState.ALIVE, MemberState.DRAINING):
            member.last_heard = min(now, member.last_heard + late_s)
