"""A process that an agent has started ends itself when none is left that could need or stop it.

A worker, when its agent and all its routers have been silent for long; a router, when its agent and
all its workers have. Its GPUs are free then; to others that is no proof of anything.

Time for which the process itself did not run, as on a machine that was paused, is no silence: what
the others said meanwhile is still to be read, or they were paused, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from twolane.deploy.errors import StartError

log = logging.getLogger(__name__)

HEARTBEAT = "heartbeat"  # in an agent's state folder; what it says changes while the agent lives
_LOOKS = 20  # within the time that makes an orphan


class OrphanRule:
    """Decides from what was seen when. No clock here: `now` is given, in seconds."""

    def __init__(self, orphan_s: float, now: float) -> None:
        self._orphan_s = orphan_s
        self._heartbeat = ""
        self._at = now  # of the last sign of life of anybody

    def excuse(self, late_s: float) -> None:
        """This process has not run for so long, just now."""
        self._at += late_s

    def look(self, heartbeat: str, heard_at: float | None, now: float) -> bool:
        """True for an orphan. `heartbeat` is what the agent's file says, `heard_at` when a router
        (of a worker) or a worker (of a router) was last heard."""
        if heartbeat != self._heartbeat:
            self._heartbeat, self._at = heartbeat, now
        self._at = max(self._at, heard_at or 0.0)
        return now - self._at > self._orphan_s


async def end_as_orphan(
    state_dir: str, orphan_s: float, heard_at: Callable[[], float | None]
) -> None:
    """Raises `StartError` as soon as this process is an orphan. `heard_at` is in the event loop's
    time. Without a state folder there is no agent, and the launcher's end is this process's."""
    if not state_dir:
        return
    clock = asyncio.get_running_loop().time
    rule = OrphanRule(orphan_s, clock())
    while True:
        due = clock() + orphan_s / _LOOKS
        await asyncio.sleep(orphan_s / _LOOKS)
        rule.excuse(max(0.0, clock() - due))
        if rule.look(_read(Path(state_dir) / HEARTBEAT), heard_at(), clock()):
            text = f"its agent and all that it serves have been silent for {orphan_s:g} s"
            log.error("this process ends: %s", text)  # the end itself may take a while
            raise StartError(text)


def _read(path: Path) -> str:
    """Empty where there is no such file, or where it cannot be read now: that ends no process."""
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
