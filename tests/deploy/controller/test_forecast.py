"""What a pool will be asked for, and how much more than that to have ready."""

from __future__ import annotations

import pytest

from twolane.deploy.controller.forecast import DAY_S, Forecast, ForecastConfig, Headroom


def fed(rates: dict[float, float], *, step_s: float = 2.0, until_s: float) -> Forecast:
    """`rates`: from each time on."""
    forecast = Forecast()
    at_s = 0.0
    while at_s <= until_s:
        forecast.add(at_s, rates[max(begin for begin in rates if begin <= at_s)])
        at_s += step_s
    return forecast


def test_a_steady_rate_is_expected_to_stay() -> None:
    assert fed({0: 50.0}, until_s=600).ahead(75) == pytest.approx(50)


def test_a_rise_counts_within_seconds_by_the_quick_average() -> None:
    forecast = fed({0: 50.0, 600: 100.0}, until_s=612)
    assert 80 < forecast.now < 90  # 1 - 1/e of the way, and two seconds more


def test_a_fall_counts_late_by_the_slow_average() -> None:
    forecast = fed({0: 100.0, 600: 50.0}, until_s=630)
    assert forecast.quick < 60
    assert forecast.now > 75


def test_a_trend_upwards_is_carried_on_and_one_downwards_is_not() -> None:
    rising = Forecast()
    falling = Forecast()
    for tick in range(600):
        rising.add(tick * 2.0, 100 + tick * 0.2)  # 0.1 a second
        falling.add(tick * 2.0, 300 - tick * 0.2)
    assert rising.ahead(75) - rising.now == pytest.approx(7.5, rel=0.05)
    assert falling.ahead(75) == falling.now


def test_two_days_of_history_add_the_usual_rate_of_that_minute() -> None:
    forecast = Forecast()
    busy = (12 * 3600.0, 12 * 3600.0 + 1800)
    at_s, first_noon = 0.0, None
    while at_s < 2 * DAY_S + busy[0] - 60:
        inside = busy[0] <= at_s % DAY_S < busy[1]
        forecast.add(at_s, 90.0 if inside else 10.0)
        if at_s == DAY_S + busy[0] - 120:
            first_noon = forecast.ahead(120)
        at_s += 30.0
    assert first_noon == pytest.approx(10, abs=1), "one day is no habit"
    assert forecast.ahead(120) == pytest.approx(90)
    assert forecast.ahead(10) == pytest.approx(10, abs=1)


def test_time_must_rise() -> None:
    forecast = fed({0: 1.0}, until_s=10)
    with pytest.raises(AssertionError):
        forecast.add(10.0, 1.0)


# Headroom


def learnt(peak: float, *, each_s: float = 600.0, hours: float = 5) -> float:
    """Of a rate of 10 that jumps to `peak` for a minute, each `each_s`; nothing is forecast."""
    headroom = Headroom()
    at_s = 0.0
    while at_s < hours * 3600:
        rate = peak if at_s % each_s < 60 else 10.0
        headroom.add(at_s, rate, rate, 75.0)
        at_s += 2.0
    return headroom.value


def test_headroom_is_a_guess_for_the_first_hour() -> None:
    assert learnt(16.0, hours=0.9) == ForecastConfig().first


def test_headroom_is_learnt_from_what_came_after_each_forecast() -> None:
    assert learnt(16.0) == pytest.approx(1.6, abs=0.03)


def test_headroom_stays_within_its_bounds() -> None:
    config = ForecastConfig()
    assert learnt(10.0) == config.least
    assert learnt(90.0) == config.most


def test_bursts_are_forgotten_after_a_day() -> None:
    headroom = Headroom()
    at_s = 0.0
    while at_s < 1.5 * DAY_S:
        rate = 19.0 if at_s < 6 * 3600 and at_s % 600 < 60 else 10.0
        headroom.add(at_s, rate, rate, 75.0)
        at_s += 10.0
        if at_s == 6 * 3600:
            assert headroom.value > 1.8
    assert headroom.value == ForecastConfig().least
