"""Outlets that nobody uses any more, until they have stopped.

An outlet stops when no page is read or written for it. Where a device hangs that is never: so the
event loop asks, and does not wait.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from twolane.kvtransfer.transport import Outlet

LATE_S = 2.0  # copies that were begun take milliseconds, and a step that they wait for tenths
_LOOK_S = 0.001  # at the end of a process

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Stopping:
    epoch: int  # of the receiver
    outlet: Outlet
    since: float
    is_late: bool = False  # and that was said


class StoppingOutlets:
    """Those of one sender. Says once of each that takes longer than `LATE_S` whose it is."""

    def __init__(self) -> None:
        self._left: list[_Stopping] = []

    def add(self, epoch: int, outlet: Outlet, now: float) -> None:
        """It begins to stop, and wakes nobody any more."""
        outlet.set_wake(_nobody)
        if not outlet.close_soon():
            self._left.append(_Stopping(epoch, outlet, now))

    def look(self, now: float) -> None:
        self._left = [one for one in self._left if not one.outlet.close_soon()]
        for one in self._left:
            if not one.is_late and now - one.since >= LATE_S:
                one.is_late = True
                _log.error(
                    "the outlet to receiver %x has not stopped within %g s: pages may still be "
                    "read for it",
                    one.epoch,
                    LATE_S,
                )

    async def wait(self) -> None:
        """Until all have stopped, or each that has not is late."""
        clock = asyncio.get_running_loop().time
        while True:
            self.look(clock())
            if all(one.is_late for one in self._left):
                return
            await asyncio.sleep(_LOOK_S)


def _nobody() -> None:
    """Its news are of no interest: what waited for them is over."""
