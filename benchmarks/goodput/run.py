"""Measures one contender after the other, rate after rate, as the tournament requires."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console

from benchmarks.goodput import table
from benchmarks.goodput.measured import Measured
from benchmarks.goodput.tournament import Tournament
from benchmarks.load.client_processes import ClientProcessesConfig, run_plan
from benchmarks.load.contender_process import Started
from benchmarks.load.progress import RunProgress
from benchmarks.load.record import Record
from benchmarks.load.sweep import warm_up
from benchmarks.load.target import Target, ask
from benchmarks.load.window import Watch, WindowConfig, make_window
from benchmarks.traffic.plan import PlanConfig
from benchmarks.traffic.trace import Trace
from benchmarks.traffic.workload import Workload

_SETTLE_S = 1.0  # between runs, for cancelled requests to free their pages
_WARM_UP_SEED = 0x57A47
_SPARE_S = 15.0  # a run's time beyond its plan: clients start, answers end


class OutOfTimeError(RuntimeError):
    """The time limit was reached before the search was complete; the measured runs are saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Everything that stays the same from run to run."""

    workload: Workload | Trace
    plan: PlanConfig
    window: WindowConfig
    crew: ClientProcessesConfig
    contest: Tournament
    console: Console
    ends_s: float  # by time.monotonic()
    on_run: Callable[[], object]  # called after each run, to save it

    def upcoming(self, contender: str, round_: int) -> tuple[float, int] | None:
        """The next run, from `Tournament.next_run`. Raises `OutOfTimeError` if there is no time for
        it."""
        upcoming = self.contest.next_run(contender, round_)
        if upcoming is not None:
            rate_per_s, _ = upcoming
            if time.monotonic() + self.window.run_s(rate_per_s) + _SPARE_S > self.ends_s:
                raise OutOfTimeError(f"no time for {rate_per_s:g}/s: go on with --resume")
        return upcoming

    async def search(self, started: Started, round_: int) -> None:
        """Measure one contender until the search is complete.

        Raises `ContenderDiedError`, `TargetError`, `ClientDiedError`, `OutOfTimeError`.
        """
        one, config = started.contender, self.contest.config
        target = await ask(one.name, one.endpoints, told=one.told, timeout_s=one.start_timeout_s)
        await self._warm_up(target, round_)
        while (upcoming := self.upcoming(one.name, round_)) is not None:
            rate_per_s, nth = upcoming
            run = await self._measure(target, round_, rate_per_s, nth)
            started.check()  # discard runs of a dead server
            self.contest.runs.append(run)
            line = table.line(run, config.slos, config.late_s)
            self.console.print(line, soft_wrap=True)
            self.on_run()
            await asyncio.sleep(_SETTLE_S)

    async def _warm_up(self, target: Target, round_: int) -> None:
        """A few requests, and then a run that does not count, at the highest initial rate: so that
        the server prepares for its batch sizes now."""
        await warm_up(self.workload, [target], self.plan_for(target), self.crew, round_)
        brief = WindowConfig(
            warm_up_s=0.0, n_requests=1, min_s=self.window.warm_up_s, cool_down_s=0.0
        )
        rate_per_s = max(self.contest.config.search.rates_per_s)
        await self._send(target, brief, rate_per_s, _WARM_UP_SEED + round_, "warm-up")
        await asyncio.sleep(_SETTLE_S)

    async def _measure(self, target: Target, round_: int, rate_per_s: float, nth: int) -> Measured:
        # Seeds differ from rate to rate, but not from contender to contender.
        seed = 10_000 * round(rate_per_s * 1e3) + 100 * round_ + nth
        records, why_halted = await self._send(
            target, self.window, rate_per_s, seed, f"{rate_per_s:g}/s"
        )
        return Measured.of(
            records,
            contender=target.name,
            round_=round_,
            rate_per_s=rate_per_s,
            seed=seed,
            halted=why_halted,
        )

    async def _send(
        self, target: Target, config: WindowConfig, rate_per_s: float, seed: int, title: str
    ) -> tuple[list[Record], str]:
        """One run: the window's records, and why it was aborted, or an empty string."""
        slos = self.contest.config.slos
        plan = self.plan_for(target)
        window = make_window(self.workload, plan, config, rate_per_s=rate_per_s, seed=seed)
        watch = Watch(window, slos)
        n_requests = len(window.measured())
        with RunProgress(f"{target.name} {title}", n_requests, slos[0], self.console) as progress:

            def note(_: str, record: Record) -> None:
                watch.on_record(record)
                if window.holds(record):
                    progress.note(record)

            records = await run_plan(
                window.plan,
                [seed],  # no prompt is sent twice, since it would be cached
                [target],
                self.crew,
                note,
                on_first=lambda _, index: watch.on_first(index),
                halt=watch.halt,
            )
        return window.pick(records[target.name]), watch.why_halted

    def plan_for(self, target: Target) -> PlanConfig:
        return self.plan.within(target.max_context_tokens)
