"""Forecasts the demand on a pool at the time when a new worker would be ready.

forecast(L) = max(EWMA 12 s, EWMA 60 s) + max(0, slope) * L
              with two days of history at least: or the seasonal median of that minute
headroom    = the 99th percentile, over the last day, of max(next L seconds) / forecast then

tokens/s                          .·´ slope
    |        _____ EWMA 12 s  .·´
    |   _.-´‾‾‾‾‾ EWMA 60 s
    +--------------|--- L ----|---> time
                  now       ready
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

DAY_S = 86_400.0
_MINUTES = 1_440


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastConfig:
    """`quick_s`, `slow_s`, `slope_s`: time constants. The headroom learnt stays within `least` and
    `most`, and is `first` until there is an hour of history."""

    quick_s: float = 12.0
    slow_s: float = 60.0
    slope_s: float = 120.0
    least: float = 1.3
    most: float = 2.0
    first: float = 1.5
    quantile: float = 0.99

    def __post_init__(self) -> None:
        assert 0 < self.quick_s <= self.slow_s
        assert 1 <= self.least <= self.first <= self.most
        assert 0 < self.quantile < 1


class Forecast:
    """The demand on one pool, in any unit per second. Call `add` with rising times."""

    def __init__(self, config: ForecastConfig | None = None) -> None:
        self._config = config or ForecastConfig()
        self._last_s: float | None = None
        self._quick = 0.0
        self._slow = 0.0
        self._slope = 0.0
        self._season = Season()

    @property
    def quick(self) -> float:
        """The average over `quick_s`: the recent rate, without the noise of single seconds."""
        return self._quick

    @property
    def now(self) -> float:
        return max(self._quick, self._slow)

    def add(self, at_s: float, per_s: float) -> None:
        """The mean rate since the last call."""
        assert per_s >= 0
        if self._last_s is None:
            self._quick = self._slow = per_s
        else:
            step_s = at_s - self._last_s
            assert step_s > 0, "time must rise"
            before = self._slow
            self._quick += (per_s - self._quick) * _share(step_s, self._config.quick_s)
            self._slow += (per_s - self._slow) * _share(step_s, self._config.slow_s)
            rise = (self._slow - before) / step_s
            self._slope += (rise - self._slope) * _share(step_s, self._config.slope_s)
        self._last_s = at_s
        self._season.add(at_s, per_s)

    def ahead(self, horizon_s: float) -> float:
        """The rate expected in `horizon_s` seconds, without headroom."""
        trend = self.now + max(0.0, self._slope) * horizon_s
        if self._last_s is None:
            return trend
        return max(trend, self._season.usual(self._last_s + horizon_s))


class Headroom:
    """How much more than the forecast came within the next `horizon_s`, learnt over a day.

    Bursts that no trend shows are met by workers that are ready before.
    """

    _BIN = 0.02

    def __init__(self, config: ForecastConfig | None = None) -> None:
        self._config = config or ForecastConfig()
        self._open: deque[tuple[float, float]] = deque()  # (time, forecast): not judged yet
        self._peaks: deque[tuple[float, float]] = deque()  # (time, rate), rates falling
        self._hours: deque[tuple[float, dict[int, int]]] = deque()  # (start, ratio's bin -> count)

    def add(self, at_s: float, rate: float, forecast: float, horizon_s: float) -> None:
        """`rate` was measured, and `forecast` was made for the next `horizon_s`."""
        while self._peaks and self._peaks[-1][1] <= rate:
            self._peaks.pop()
        self._peaks.append((at_s, rate))
        self._open.append((at_s, forecast))
        while self._open and self._open[0][0] <= at_s - horizon_s:
            made_s, was = self._open.popleft()
            while self._peaks[0][0] < made_s:
                self._peaks.popleft()
            if was > 0:
                self._count(made_s, self._peaks[0][1] / was)

    def _count(self, at_s: float, ratio: float) -> None:
        if not self._hours or at_s - self._hours[-1][0] >= 3600:
            self._hours.append((at_s, {}))
            while self._hours[0][0] < at_s - DAY_S:
                self._hours.popleft()
        bins = self._hours[-1][1]
        nth = min(int(ratio / self._BIN), 1000)
        bins[nth] = bins.get(nth, 0) + 1

    @property
    def value(self) -> float:
        """The headroom, between the config's `least` and `most`."""
        if len(self._hours) < 2:
            return self._config.first
        total: dict[int, int] = {}
        for _, bins in self._hours:
            for nth, count in bins.items():
                total[nth] = total.get(nth, 0) + count
        wanted = self._config.quantile * sum(total.values())
        seen = 0
        for nth in sorted(total):
            seen += total[nth]
            if seen >= wanted:
                ratio = (nth + 1) * self._BIN
                return min(max(ratio, self._config.least), self._config.most)
        raise AssertionError("a quantile lies among the values")


class Season:
    """The usual rate of each minute of the day: the median over the last days, once there are two
    whole ones."""

    _DAYS = 7

    def __init__(self) -> None:
        self._days: deque[list[float | None]] = deque(maxlen=self._DAYS)
        self._minute: int | None = None
        self._sum = 0.0
        self._n = 0

    def add(self, at_s: float, per_s: float) -> None:
        minute = int(at_s // 60)
        if minute != self._minute:
            self._close(minute)
        self._sum += per_s
        self._n += 1

    def _close(self, minute: int) -> None:
        if self._minute is not None:
            self._days[-1][self._minute % _MINUTES] = self._sum / self._n
        if self._minute is None or minute // _MINUTES > self._minute // _MINUTES:
            self._days.append([None] * _MINUTES)
        self._minute, self._sum, self._n = minute, 0.0, 0

    def usual(self, at_s: float) -> float:
        """The usual rate at that time of day; 0 without two whole days of history."""
        whole = [*self._days][:-1]
        known = [day[int(at_s // 60) % _MINUTES] for day in whole]
        rates = [rate for rate in known if rate is not None]
        return median(rates) if len(rates) >= 2 else 0.0


def _share(step_s: float, constant_s: float) -> float:
    return 1 - math.exp(-step_s / constant_s)
