"""The one loop of a worker: commands, plan, step, results, again.

    .-> commands -> tick -> plan --- work --> step (off the event loop), ship -> apply --.
    |                         |                                                          |
    |                         `-- none --> ship, idle -> sleep until woken               |
    `------------------------------------------------------------------------------------'

What was sampled is shipped as soon as the next step is on its way: one message a router a step.

Where the engine takes steps ahead, step k + 1 is planned and submitted before the results of step k
are there, and its rows follow samples that are still on the device:

    plan k | plan k + 1 | wait for k, apply k | plan k + 2 | wait for k + 1, apply k + 1 | ...

Roles are called by this loop only, never amid a plan. A page that is given back while a step is on
its way comes free when that step is done (see `twolane.worker.deferred_release`), so no step writes
what is another's.

An error of one row is that row's news. An exception out of a step is a fault of the whole engine
(a device error, a broken pool): nothing that it wrote can be trusted, so it leaves `run`, ends the
worker loudly, and the routers resume its rows elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from twolane.engine.step import Mark, RowResult, RowWork
from twolane.worker.config import StepLimits, StepWatchConfig
from twolane.worker.deferred_release import PageReturns
from twolane.worker.observer import Observer
from twolane.worker.role import Roles
from twolane.worker.steps.step_runner import StepRunner
from twolane.worker.steps.step_watch import StepWatch

log = logging.getLogger(__name__)

Command = Callable[[float], None]
_LEAST_NAP_S = 0.001
_n_new = attrgetter("n_new")


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step that was submitted and whose results were not taken."""

    work: list[RowWork]
    results: asyncio.Task[list[RowResult]]


class StepLoop:
    """`run` is the loop; everything else may be called at any time on the same event loop."""

    def __init__(
        self,
        roles: Roles,
        runner: StepRunner,
        limits: StepLimits,
        *,
        watch: StepWatch | None = None,
        returns: PageReturns,
        ship: Callable[[float], None],
        observer: Observer,
        on_idle: Callable[[float], None] = lambda now: None,
    ) -> None:
        self._roles = roles
        self._runner = runner
        self._limits = limits
        self._watch = watch or StepWatch(StepWatchConfig())
        self._returns = returns
        self._ship = ship
        self._observer = observer
        self._on_idle = on_idle
        self._commands: deque[Command] = deque()
        self._wake = asyncio.Event()

    def submit(self, command: Command) -> None:
        """Run it between two steps, in order of submission, then look for work."""
        self._commands.append(command)
        self._wake.set()

    def wake(self) -> None:
        """Something has changed that may give a role work."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled. Raises what an engine step raised, in a group."""
        loop = asyncio.get_running_loop()
        flying: deque[_Flight] = deque()
        async with asyncio.TaskGroup() as steps:
            while True:
                self._wake.clear()
                self._between_steps(loop.time())
                work = self._plan(loop.time())
                if work:  # the device first: what was sampled is shipped while it is given the step
                    self._returns.on_submitted()
                    results = steps.create_task(self._run(work))
                    self._watch.begin(work, loop.time())
                    flying.append(_Flight(work, results))
                self._ship(loop.time())
                if flying and (not work or len(flying) > self._runner.steps_ahead):
                    await self._land(flying.popleft())
                elif not flying:
                    self._on_idle(loop.time())
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
            left -= sum(map(_n_new, share))
            assert left >= 0, "a role planned more than it was given"
            work += share
        return work

    def _run(self, work: list[RowWork]) -> Coroutine[Any, Any, list[RowResult]]:
        prefill = self._roles.prefill
        if prefill is None:
            return self._runner.run(work, None)

        def on_submitted(mark: Mark | None) -> None:
            prefill.on_submitted(work, mark, asyncio.get_running_loop().time())

        return self._runner.run(work, on_submitted)

    async def _land(self, flight: _Flight) -> None:
        """Wait for the oldest step and take its results."""
        work = flight.work
        results = await flight.results
        now = asyncio.get_running_loop().time()
        assert [r.row for r in results] == [w.row for w in work], "results of other rows"
        self._returns.on_done()
        by_number = {result.row: result for result in results}
        for role in self._roles.all:
            role.apply(by_number, now)
        self._observer.on_step(self._watch.end(now), sum(map(_n_new, work)))

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
