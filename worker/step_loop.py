"""The one loop of a worker: commands, plan, step, results, again.

    .-> commands -> tick -> plan --- work --> ship -> step (off the event loop) -> apply --.
    |                         |                                                            |
    |                         `-- none --> ship -> sleep until woken                       |
    `--------------------------------------------------------------------------------------'

Roles are called between steps only, so no role ever frees a page that a running step reads. What
was sampled is shipped as soon as the next step is planned: one message a router a step.

An error of one row is that row's news. An exception out of a step is a fault of the whole engine
(a device error, a broken pool): nothing that it wrote can be trusted, so it leaves `run`, ends the
worker loudly, and the routers resume its rows elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from engine.step import RowWork
from worker.config import StepLimits
from worker.observer import Observer
from worker.role import Roles
from worker.step_runner import StepRunner

log = logging.getLogger(__name__)

Command = Callable[[float], None]
_SMOOTHING = 0.1  # weight of the newest step in the moving average
_LEAST_NAP_S = 0.001


class StepLoop:
    """`run` is the loop; everything else may be called at any time on the same event loop."""

    def __init__(
        self,
        roles: Roles,
        runner: StepRunner,
        limits: StepLimits,
        *,
        ship: Callable[[float], None],
        observer: Observer,
    ) -> None:
        self._roles = roles
        self._runner = runner
        self._limits = limits
        self._ship = ship
        self._observer = observer
        self._commands: deque[Command] = deque()
        self._wake = asyncio.Event()
        self.step_s = 0.0  # moving average
        self.n_steps = 0

    def submit(self, command: Command) -> None:
        """Run it between two steps, in order of submission, then look for work."""
        self._commands.append(command)
        self._wake.set()

    def wake(self) -> None:
        """Something has changed that may give a role work."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled. Raises what an engine step raised."""
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            self._between_steps(loop.time())
            work = self._plan(loop.time())
            self._ship(loop.time())
            if work:
                await self._step(work)
            else:
                await self._sleep()

    def _between_steps(self, now: float) -> None:
        while self._commands:
            self._commands.popleft()(now)
        for role in self._roles.all:
            role.tick(now)

    def _plan(self, now: float) -> list[RowWork]:
        work: list[RowWork] = []
        left = self._limits.step_tokens
        for role in self._roles.all:
            share = role.plan(left, now)
            left -= sum(row.n_new for row in share)
            assert left >= 0, "a role planned more than it was given"
            work += share
        return work

    async def _step(self, work: list[RowWork]) -> None:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        results = await self._runner.run(work)
        now = loop.time()
        assert [r.row for r in results] == [w.row for w in work], "results of other rows"
        by_number = {result.row: result for result in results}
        for role in self._roles.all:
            role.apply(by_number, now)
        self.n_steps += 1
        took_s = now - started_s
        weight = _SMOOTHING if self.n_steps > 1 else 1.0
        self.step_s += weight * (took_s - self.step_s)
        self._observer.on_step(took_s, sum(row.n_new for row in work))

    async def _sleep(self) -> None:
        now = asyncio.get_running_loop().time()
        wakes = [at for role in self._roles.all if (at := role.wake_at_s) is not None]
        if not wakes:
            await self._wake.wait()
            return
        try:
            async with asyncio.timeout_at(max(min(wakes), now + _LEAST_NAP_S)):
                await self._wake.wait()
        except TimeoutError:
            return
