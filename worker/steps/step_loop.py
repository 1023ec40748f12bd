"""The main loop of a worker: commands, plan, step, results, repeat.

    .-> commands -> tick -> plan --- work --> step -> apply -> ship --.
    |                         |                                       |
    |                         `-- none --> ship, idle -> sleep        |
    `-----------------------------------------------------------------'

Sampled tokens are sent as soon as they are there: one message per router and step.

If the engine pipelines steps, step k + 1 is planned and submitted before the results of step k are
there, and its rows use samples that are still on the device. The device then has work while the
samples of step k are sent:

    plan k | plan k + 1 | wait for k, apply, ship k | plan k + 2 | wait for k + 1, apply, ship | ...

Step k + 2 is planned as late as it may be (`twolane.worker.steps.late_plan`), for rows that come
meanwhile.

Only this loop calls roles, and never during a plan. A page that is returned while a step is in
flight comes free when that step is done (see `twolane.worker.page_returns`), so no step writes
to a page of another row.

An error of one row is an event of that row. An exception from a step is a fault of the whole engine
(a device error, a broken pool): nothing that it wrote can be trusted, so `run` raises it, the
worker ends, and the routers resume its rows elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from twolane.engine.step import Mark, RowWork
from twolane.worker.config import StepLimits, StepWatchConfig
from twolane.worker.observer import WorkerObserver
from twolane.worker.page_returns import PageReturns
from twolane.worker.role import Roles
from twolane.worker.steps.late_plan import LatePlan
from twolane.worker.steps.step_runner import LandedStep, StepRunner
from twolane.worker.steps.step_totals import StepTotals
from twolane.worker.steps.step_watch import StepWatch

log = logging.getLogger(__name__)

Command = Callable[[float], None]
_LEAST_NAP_S = 0.001
_n_new = attrgetter("n_new")


@dataclass(frozen=True, slots=True)
class _StepInFlight:
    """A submitted step whose results are not processed yet."""

    work: list[RowWork]
    n_decode: int  # how many of them, from the first, are decode rows
    follows: bool  # submitted while another was in flight
    landing: asyncio.Task[LandedStep]

    @property
    def is_steady(self) -> bool:
        """Such steps take about as long as the one before: all rows are decode rows."""
        return self.follows and self.n_decode == len(self.work)


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
        observer: WorkerObserver,
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
        self.totals = StepTotals()
        self._commands: deque[Command] = deque()
        self._wake = asyncio.Event()
        self._late_plan = LatePlan()

    def submit(self, command: Command) -> None:
        """Run the command between two steps, in order of submission, then look for work."""
        self._commands.append(command)
        self._wake.set()

    def wake(self) -> None:
        """Something has changed that may create work for a role."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled. Raises what an engine step raised, in an exception group."""
        loop = asyncio.get_running_loop()
        in_flight: deque[_StepInFlight] = deque()
        async with asyncio.TaskGroup() as steps:
            while True:
                self._wake.clear()
                self._between_steps(loop.time())
                work, n_decode = self._plan(loop.time())
                if work:  # submit first: samples are sent while the device computes
                    self._returns.on_submitted()
                    self._watch.begin(work, loop.time())
                    landing = steps.create_task(self._run(work))
                    in_flight.append(_StepInFlight(work, n_decode, bool(in_flight), landing))
                self._ship(loop.time())
                if in_flight and (not work or len(in_flight) > self._runner.steps_ahead):
                    await self._land(in_flight.popleft())
                    self._ship(loop.time())  # samples need not wait for the next plan
                    await self._pause(in_flight)
                elif in_flight:
                    await asyncio.sleep(0)  # links write what was shipped before the next plan
                else:
                    self._on_idle(loop.time())
                    await self._sleep()

    def _between_steps(self, now: float) -> None:
        while self._commands:
            self._commands.popleft()(now)
        for role in self._roles.all:
            role.tick(now)

    def _plan(self, now: float) -> tuple[list[RowWork], int]:
        """The work, and how many of its shares, which come first, are decode rows."""
        work: list[RowWork] = []
        n_decode = 0
        left = self._limits.step_tokens
        for role in self._roles.all:
            share = role.plan(left, now)
            left -= sum(map(_n_new, share))
            assert left >= 0, "a role planned more positions than it may"
            work += share
            if role is self._roles.decode:
                n_decode = len(work)
        return work, n_decode

    def _run(self, work: list[RowWork]) -> Coroutine[Any, Any, LandedStep]:
        prefill = self._roles.prefill
        if prefill is None:
            return self._runner.run(work, None)

        def on_submitted(mark: Mark | None) -> None:
            prefill.on_submitted(work, mark, asyncio.get_running_loop().time())

        return self._runner.run(work, on_submitted)

    async def _land(self, flight: _StepInFlight) -> None:
        """Wait for the oldest step and process its results."""
        work = flight.work
        landed = await flight.landing
        results = landed.results
        now = asyncio.get_running_loop().time()
        assert [r.row for r in results] == [w.row for w in work], "results of other rows"
        self._returns.on_done()
        by_number = {result.row: result for result in results}
        for role in self._roles.all:
            role.apply(by_number, now)
        self._late_plan.note(landed.times, is_steady=flight.is_steady)
        took_s = self._watch.end(now)
        self.totals.note(work, results, flight.n_decode, took_s)
        self._observer.on_step(took_s, sum(map(_n_new, work)))

    async def _pause(self, in_flight: Sequence[_StepInFlight]) -> None:
        """While links write what was shipped: until the next step must be planned, at the latest
        when the results of the one in flight are there."""
        pause_s = self._late_plan.pause_s(asyncio.get_running_loop().time())
        if pause_s <= 0 or not in_flight or not in_flight[0].is_steady:
            await asyncio.sleep(0)
            return
        timer = self._runner.timer(pause_s)
        either: list[asyncio.Future[Any]] = [in_flight[0].landing, timer]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()

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
