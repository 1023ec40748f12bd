"""Turns what the workers report into an observation: forecasts, capacities, needs, and a history.

    need of prefill   ceil(forecast * headroom / capacity + backlog / (clear_s * capacity)),
                      the backlog only while its oldest prompt waits too long
    need of decode    the largest of ceil(forecast * headroom / capacity), ceil(rows / rows of one),
                      ceil(pages / 90 % of one worker's pages)

Both are coupled: prompts that wait because decode has no place for them (UNPLACED) are decode's
need, and prefill does not grow into a full decode pool.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from twolane.deploy.controller.capacity import (
    Clamped,
    LearntCost,
    decode_tokens_per_s,
    prefill_tokens_per_s,
    rows_within,
)
from twolane.deploy.controller.forecast import Forecast, ForecastConfig, Headroom
from twolane.deploy.controller.kept import Kept
from twolane.deploy.controller.limits import Limits
from twolane.deploy.controller.observation import Need, Observation, Role, Worker
from twolane.deploy.controller.priors import Hardware

_LEARNT_STEPS = 50
_STARTS = 20  # measured starts that are remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverConfig:
    """`prefill_share`: the share of a prefill worker's time that prompts may take, so that few wait
    too long. `step_share`: the share of the gap SLO that a decode step may take. `clear_s`: within
    this time a backlog shall be gone. `wait_share`: of the TTFT SLO; prompts that wait longer are
    a backlog. `unplaced_s`: for about this long prompts must have lacked a place in decode until
    the backlog counts as decode's. `page_share`: of a decode worker's pages that rows may take.
    `trusts_prior`: capacities change slowly from the first step on; else only once they are
    learnt."""

    ttft_s: float = 0.5
    gap_s: float = 0.020
    prefill_share: float = 0.72
    step_share: float = 0.7
    clear_s: float = 15.0
    wait_share: float = 0.5
    unplaced_s: float = 10.0
    page_share: float = 0.9
    trusts_prior: bool = True
    forecast: ForecastConfig = field(default_factory=ForecastConfig)

    def __post_init__(self) -> None:
        shares = (self.prefill_share, self.step_share, self.wait_share, self.page_share)
        assert all(0 < share <= 1 for share in shares)
        assert min(self.ttft_s, self.gap_s, self.clear_s) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """The sums over all load reports at one time. Counters since the controller began:
    `prompt_tokens` that arrived and had to be computed, `requests`, `output_tokens`, and of
    finished requests `answers` with `answer_tokens`. The rest is as it is now: prompts that wait
    for prefill, prompts that are computed and have no place in decode, and decode's rows with
    their context, and the tokens of all pages that are used or promised."""

    prompt_tokens: int = 0
    requests: int = 0
    output_tokens: int = 0
    answers: int = 0
    answer_tokens: int = 0
    waiting_tokens: int = 0
    waiting: int = 0
    oldest_wait_s: float = 0.0
    unplaced: int = 0
    rows: int = 0
    context_tokens: int = 0
    page_tokens: int = 0


class Observer:
    """Call `observe` at rising times, each two seconds or so, and the others as things happen."""

    def __init__(
        self, hardware: Hardware, limits: Limits, config: ObserverConfig | None = None
    ) -> None:
        self.config = config or ObserverConfig()
        self._hardware = hardware
        prompt = (1024.0, 1024.0 * 1024.0)
        rows = (100.0, 100.0 * 1024.0)
        self._costs = {
            Role.PREFILL: LearntCost(hardware.prefill, prompt),
            Role.DECODE: LearntCost(hardware.decode, rows),
        }
        self._prompt_tokens, self._prompt_squares = prompt
        self._context = 1024.0
        self._each_tokens = 1.0  # that a row gets in a step
        self._answer = 0.0
        tokens_per_s = prefill_tokens_per_s(hardware.prefill, [1024])
        self._rates = {
            Role.PREFILL: Clamped(tokens_per_s * self.config.prefill_share),
            Role.DECODE: Clamped(self._decode_rate()),
        }
        self._forecasts = {role: Forecast(self.config.forecast) for role in Role}
        self._headrooms = {role: Headroom(self.config.forecast) for role in Role}
        self._kept = {role: Kept(limits.kept_s, limits.most_kept_s) for role in Role}
        self._n_steps = dict.fromkeys(Role, 0)
        self._starts_s: deque[float] = deque(maxlen=_STARTS)
        self._failed_starts = 0
        self._failed_s: float | None = None
        self._last: tuple[float, Signals] | None = None
        self._request_s: float | None = None
        self._unplaced = 0.0  # share of the last seconds in which prompts had no place in decode

    def prefill_step(self, tokens: int, squares: int, step_s: float) -> None:
        """A step that computed prompts of so many tokens, `squares` the sum of their squares."""
        self._costs[Role.PREFILL].add(tokens, squares, step_s)
        self._n_steps[Role.PREFILL] += 1
        self._prompt_tokens += (tokens - self._prompt_tokens) / 200
        self._prompt_squares += (squares - self._prompt_squares) / 200

    def decode_step(
        self, rows: int, context_tokens: int, step_s: float, each_tokens: float = 1.0
    ) -> None:
        """A step of so many rows, with so much context in all, in which each row got so many
        tokens."""
        self._costs[Role.DECODE].add(rows, context_tokens, step_s)
        self._n_steps[Role.DECODE] += 1
        self._context += (context_tokens / rows - self._context) / 200
        self._each_tokens += (each_tokens - self._each_tokens) / 200

    def started(self, took_s: float) -> None:
        """Record that a worker became ready."""
        self._starts_s.append(took_s)
        self._failed_starts = 0

    def start_failed(self, at_s: float) -> None:
        """Record a start that failed or was cancelled before its worker was ready."""
        self._failed_starts += 1
        self._failed_s = at_s

    @property
    def start_s(self) -> float:
        """The 90th percentile of measured starts; the prior before the first one."""
        if not self._starts_s:
            return self._hardware.start_s
        starts = sorted(self._starts_s)
        return starts[min(len(starts) - 1, int(0.9 * len(starts)))]

    def observe(
        self,
        now: float,
        signals: Signals,
        workers: tuple[Worker, ...],
        *,
        attainment: float | None = None,
        waiting: int = 0,
        by_hand_s: float | None = None,
        last_down_s: float | None = None,
        flipped_s: Mapping[Role, float] | None = None,
        pins: Mapping[Role, int] | None = None,
        records_events: bool = True,
        began_s: float | None = None,
    ) -> Observation:
        """What `decide` takes, from what the load reports sum up to. `waiting`: requests that no
        worker has yet."""
        self._learn(now, signals)
        needs = {
            Role.PREFILL: self._prefill_need(now, signals),
            Role.DECODE: self._decode_need(now, signals),
        }
        return Observation(
            workers=workers,
            needs=needs,
            attainment=attainment,
            waiting=waiting,
            idle_s=now - self._request_s if self._request_s is not None else 0.0,
            failed_starts=self._failed_starts,
            failed_s=self._failed_s,
            by_hand_s=by_hand_s,
            last_down_s=last_down_s,
            flipped_s=flipped_s or {},
            start_s=self.start_s,
            pins=pins or {},
            records_events=records_events,
            began_s=began_s,
        )

    def _learn(self, now: float, signals: Signals) -> None:
        before_s, before = self._last or (now, signals)
        self._last = now, signals
        if self._request_s is None or signals.requests > before.requests:
            self._request_s = now
        cost = self._costs[Role.PREFILL].cost
        step_s = cost.step_s(self._prompt_tokens, self._prompt_squares)
        share = self.config.prefill_share
        prefill_rate = share * self._prompt_tokens / step_s
        for role, rate in ((Role.PREFILL, prefill_rate), (Role.DECODE, self._decode_rate())):
            is_known = self.config.trusts_prior or self._n_steps[role] > _LEARNT_STEPS
            self._rates[role].follow(now, rate, is_free=not is_known)
        if now <= before_s:
            return
        took_s = now - before_s
        fresh = 1 - math.exp(-took_s / self.config.unplaced_s)
        self._unplaced += (float(signals.unplaced > 0) - self._unplaced) * fresh
        answers = signals.answers - before.answers
        if answers:
            mean = (signals.answer_tokens - before.answer_tokens) / answers
            self._answer += (mean - self._answer) * (min(1.0, took_s / 60) if self._answer else 1.0)
        arriving = (signals.prompt_tokens - before.prompt_tokens) / took_s
        # answers to come count as soon as their prompts do; those under way by what they write
        written = (signals.output_tokens - before.output_tokens) / took_s
        to_write = (signals.requests - before.requests) / took_s * self._answer
        rates = {Role.PREFILL: arriving, Role.DECODE: max(written, to_write)}
        for role, rate in rates.items():
            forecast = self._forecasts[role]
            forecast.add(now, rate)
            self._headrooms[role].add(
                now, forecast.quick, forecast.ahead(self.start_s), self.start_s
            )

    def _rows_of_one(self) -> int:
        cost = self._costs[Role.DECODE].cost
        step_s = self.config.step_share * self.config.gap_s
        return rows_within(cost, step_s, self._context, self._hardware.rows)

    def _decode_rate(self) -> float:
        rows = self._rows_of_one()
        one_each = decode_tokens_per_s(self._costs[Role.DECODE].cost, rows, self._context)
        return self._each_tokens * one_each

    def _prefill_need(self, now: float, signals: Signals) -> Need:
        rate = self._rates[Role.PREFILL].value
        is_late = signals.oldest_wait_s > self.config.wait_share * self.config.ttft_s
        tokens = signals.waiting_tokens * (1 - self._unplaced) if is_late else 0.0
        backlog = tokens / (self.config.clear_s * rate)
        return self._need(now, Role.PREFILL, backlog, [], signals)

    def _decode_need(self, now: float, signals: Signals) -> Need:
        of_one = self._rows_of_one()
        rows = signals.rows + self._unplaced * (signals.unplaced + signals.waiting)
        pages = signals.page_tokens / (self._hardware.kv_tokens * self.config.page_share)
        others = [("rows", rows / of_one), ("pages", pages)]
        here = max((signals.rows + signals.unplaced) / of_one, pages)
        return self._need(now, Role.DECODE, 0.0, others, signals, here)

    def _need(
        self,
        now: float,
        role: Role,
        extra: float,
        others: list[tuple[str, float]],
        signals: Signals,
        here: float = 0.0,
    ) -> Need:
        """`extra` workers beside the forecast's; `others`: bounds that may be larger. `here`: what
        the pool has work for now, in workers."""
        forecast, headroom = self._forecasts[role], self._headrooms[role].value
        rate = self._rates[role].value
        expected = forecast.ahead(self.start_s)
        by_rate = expected * headroom / rate + extra
        soon = forecast.ahead(2 * self._hardware.flip_s) / rate + extra
        load = max(forecast.now / rate, here)
        name, most = max(others, key=lambda other: other[1], default=("rate", 0.0))
        workers = math.ceil(max(by_rate, most) - 1e-9)
        is_prefill = role is Role.PREFILL
        return Need(
            workers=workers,
            soon=math.ceil(max(soon, most) - 1e-9),
            kept=self._kept[role].add(now, workers),
            load=load,
            busy=load * self.config.prefill_share if is_prefill else load,
            forecast_per_s=expected,
            horizon_s=self.start_s,
            headroom=headroom,
            capacity_per_s=rate,
            backlog_tokens=signals.waiting_tokens if is_prefill else 0,
            oldest_wait_s=signals.oldest_wait_s if is_prefill else 0.0,
            rows=0 if is_prefill else signals.rows,
            unplaced=signals.unplaced,
            bound_by=name if most > by_rate else "backlog" if extra else "rate",
        )
