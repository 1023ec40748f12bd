from collections.abc import Callable

import pytest

from benchmarks.goodput.search import Bracket, SearchConfig, Tally, bracket, falling, next_rate

N = 1_000


def _search(
    shares: Callable[[float], float], config: SearchConfig, hopeless_from: float = 1e9
) -> dict[float, Tally]:
    """Measure until nothing is left; shares are told exactly."""
    tallies: dict[float, Tally] = {}
    for _ in range(100):
        rate = next_rate(tallies, config)
        if rate is None:
            return tallies
        run = Tally(round(shares(rate) * N), N, 1, rate >= hopeless_from)
        tallies[rate] = tallies.get(rate, Tally()) + run
    raise AssertionError("the search does not end")


def _falls(at: float) -> Callable[[float], float]:
    return lambda rate: 1.0 if rate <= at else 0.3


@pytest.mark.parametrize("limit", [0.3, 1.0, 3.7, 9.0, 21.9, 100.0])
@pytest.mark.parametrize("start", [[4.0], [2.0, 8.0, 16.0]])
def test_the_bracket_closes_around_the_limit(limit: float, start: list[float]) -> None:
    config = SearchConfig(rates_per_s=start, tolerance=0.05)
    found = bracket(_search(_falls(limit), config), config)
    assert found.low_per_s is not None
    assert found.high_per_s is not None
    assert found.low_per_s <= limit < found.high_per_s
    assert found.high_per_s - found.low_per_s <= 0.05 * found.high_per_s + 0.01


def test_rates_to_begin_with_are_measured_up_to_the_first_hopeless_one() -> None:
    config = SearchConfig(rates_per_s=[4, 8, 12, 18, 24])
    tallies = _search(_falls(5.0), config, hopeless_from=12)
    assert {4.0, 8.0, 12.0} <= tallies.keys()
    assert max(tallies) == 12.0
    assert {4, 8, 12, 18, 24} <= _search(_falls(5.0), config).keys()


def test_a_search_ends_where_it_may_go_no_further() -> None:
    config = SearchConfig(rates_per_s=[4.0], lowest_per_s=1.0, highest_per_s=10.0)
    assert bracket(_search(_falls(1e9), config), config) == Bracket(9.0, None)
    assert bracket(_search(_falls(0.0), config), config) == Bracket(None, 1.0)


def test_a_share_near_the_limit_is_measured_again_before_it_counts() -> None:
    config = SearchConfig(rates_per_s=[4.0], repeats=3)
    near = Tally(91, 100, 1)
    assert next_rate({4.0: near}, config) == 4.0
    assert next_rate({4.0: near + near}, config) == 4.0
    assert next_rate({4.0: near + near + near}, config) == 6.0
    assert next_rate({4.0: Tally(100, 100, 1)}, config) == 6.0


def test_bad_luck_at_a_low_rate_is_pooled_with_better_neighbours() -> None:
    tallies = {2.0: Tally(89, 100, 1), 4.0: Tally(98, 100, 1), 8.0: Tally(50, 100, 1)}
    config = SearchConfig(rates_per_s=[2.0])
    assert [round(tally.share, 3) for tally in falling(tallies).values()] == [0.935, 0.935, 0.5]
    assert bracket(tallies, config) == Bracket(4.0, 8.0)
    tallies[2.0] = Tally(30, 100, 1)  # not luck
    assert bracket(tallies, config) == Bracket(None, 2.0)


def test_a_hopeless_rate_misses_whatever_had_held_until_it_was_given_up() -> None:
    tallies = {2.0: Tally(100, 100, 1), 4.0: Tally(100, 100, 1, is_hopeless=True)}
    assert bracket(tallies, SearchConfig(rates_per_s=[2.0])) == Bracket(2.0, 4.0)


@pytest.mark.parametrize(("held", "n"), [(0, 0), (0, 10), (10, 10), (90, 100)])
def test_a_tallys_interval_holds_its_share(held: int, n: int) -> None:
    tally = Tally(held, n, 1)
    low, high = tally.interval
    assert 0 <= low <= tally.share <= high <= 1
