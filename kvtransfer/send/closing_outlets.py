"""Outlets that are being closed, until they have stopped.

An outlet has stopped when no page is read or written for it. If a device hangs, that never happens,
so the event loop polls instead of waiting.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from twolane.kvtransfer.transport import Outlet

LATE_S = 2.0  # a copy takes milliseconds; the step it may wait for, tenths of a second
_LOOK_S = 0.001  # at the end of a process

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Stopping:
    epoch: int  # of the receiver
    outlet: Outlet
    since: float
    is_late: bool = False  # and that was logged


class StoppingOutlets:
    """The closing outlets of one sender. Logs each that takes longer than `LATE_S` once."""

    def __init__(self) -> None:
        self._left: list[_Stopping] = []

    def add(self, epoch: int, outlet: Outlet, now: float) -> None:
        """Begin to close it. It no longer wakes the event loop."""
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
        """Wait until all have stopped, or each that has not is late."""
        clock = asyncio.get_running_loop().time
        while True:
            self.look(clock())
            if all(one.is_late for one in self._left):
                return
            await asyncio.sleep(_LOOK_S)


def _nobody() -> None:
    """Ignores its completions: nothing waits for them."""
