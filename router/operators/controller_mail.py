"""Acts that only a controller can carry out: they wait here for its next Supervise.

operator ──KillWorker──> router   ask() waits
controller ──Supervise──> router  takes the act away
controller ──Supervise──> router  brings its result; ask() returns it
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Iterable

from twolane.errors import OverloadedError, UnavailableError
from twolane.v1 import acts_pb2, cluster_pb2

MOST_WAITING = 64
FRESH_S = 5.0  # a controller calls each second
_Answer = asyncio.Future[acts_pb2.ControllerActResult]


class ControllerMail:
    """The waiting acts of one router. It reads no clock: the caller passes `now`, in seconds."""

    def __init__(self) -> None:
        # not those of the router before this one, which a controller may still be doing
        self._numbers = itertools.count(1 + secrets.randbits(48))
        self._waiting: dict[int, tuple[acts_pb2.ControllerAct, _Answer]] = {}
        # Time of the last call and term, by controller.
        self._heard: dict[str, tuple[float, int]] = {}

    def note(self, controller_id: str, term: int, now: float) -> bool:
        """Record a call of a controller. False if one with a higher term has called recently."""
        self._heard[controller_id] = now, term
        self._heard = {
            name: heard for name, heard in self._heard.items() if now - heard[0] < FRESH_S
        }
        return term >= max(heard_term for _, heard_term in self._heard.values())

    def controllers(self, now: float) -> list[cluster_pb2.ControllerStatus]:
        """The controllers that have called recently; more than one is a fault."""
        return [
            cluster_pb2.ControllerStatus(controller_id=name, term=term, last_heard_s=now - at)
            for name, (at, term) in self._heard.items()
            if now - at < FRESH_S
        ]

    def acts(self) -> list[acts_pb2.ControllerAct]:
        """The acts without a result."""
        return [act for act, _ in self._waiting.values()]

    def take_in(self, results: Iterable[acts_pb2.ControllerActResult]) -> None:
        """Take in results. A result whose caller has gone is dropped."""
        for result in results:
            waiting = self._waiting.get(result.number)
            if waiting is not None and not waiting[1].done():
                waiting[1].set_result(result)

    async def ask(
        self, act: acts_pb2.ControllerAct, within_s: float, now: float
    ) -> acts_pb2.ControllerActResult:
        """As `try_ask`. Raises `UnavailableError` if it has not answered in time, too."""
        result = await self.try_ask(act, within_s, now)
        if result is None:
            text = f"the controller has not answered in {within_s:g} s: the act may still be done"
            raise UnavailableError(text)
        return result

    async def try_ask(
        self, act: acts_pb2.ControllerAct, within_s: float, now: float
    ) -> acts_pb2.ControllerActResult | None:
        """Have a controller carry out an act. None: it has not answered in time, and may still
        carry it out. Raises `UnavailableError` if there is no controller, and `OverloadedError` if
        too many acts wait for it."""
        if not self.controllers(now):
            raise UnavailableError(
                "no controller is there to do it: `twolane up` runs one, and is not heard here"
            )
        if len(self._waiting) >= MOST_WAITING:
            text = f"{MOST_WAITING} acts wait for the controller, at most so many"
            raise OverloadedError(text, retry_after_s=1.0)
        number = next(self._numbers)
        sent = acts_pb2.ControllerAct()
        sent.CopyFrom(act)
        sent.number = number
        answer: _Answer = asyncio.get_running_loop().create_future()
        self._waiting[number] = sent, answer
        try:
            async with asyncio.timeout(within_s):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._waiting[number]
