"""The whole search, with a server in the place of `run_plan` whose answers can be computed."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from benchmarks.goodput import run as goodput_run
from benchmarks.goodput import table
from benchmarks.goodput.measured import Measured
from benchmarks.goodput.run import Measurement, OutOfTimeError
from benchmarks.goodput.search import SearchConfig
from benchmarks.goodput.tournament import Tournament, TournamentConfig, in_turn
from benchmarks.load.client_processes import ClientProcessesConfig
from benchmarks.load.contender import Contender
from benchmarks.load.contender_process import Started
from benchmarks.load.record import Record, Slo
from benchmarks.load.target import Target
from benchmarks.load.window import WindowConfig
from benchmarks.traffic.plan import Plan, PlanConfig
from benchmarks.traffic.workload import find_workload

SERVICE_S = 0.05
SLO = Slo(ttft_s=0.2, gap_s=0.02)
TARGET = Target(name="queue", endpoints=("nowhere:1",), vocab_size=9, max_context_tokens=64)


def share_served(rate_per_s: float, service_s: float, within_s: float) -> float:
    """P(wait + service <= within) of an M/D/1 queue (Erlang 1909; Tijms, A First Course, 9.5)."""
    wait_s = within_s - service_s
    terms = [
        (rate_per_s * (k * service_s - wait_s)) ** k
        / math.factorial(k)
        * math.exp(-rate_per_s * (k * service_s - wait_s))
        for k in range(math.floor(wait_s / service_s + 1e-9) + 1)
    ]
    return (1 - rate_per_s * service_s) * sum(terms)


def rate_served(share: float) -> float:
    """By bisection."""
    low, high = 0.0, 1 / SERVICE_S
    for _ in range(60):
        middle = (low + high) / 2
        is_served = share_served(middle, SERVICE_S, SLO.ttft_s) >= share
        low, high = (middle, high) if is_served else (low, middle)
    return low


async def _queue(
    plan: Plan,
    prompt_seed: Sequence[int],
    targets: Sequence[Target],
    config: object,
    on_record: Callable[[str, Record], None],
    *,
    on_first: Callable[[str, int], None] = lambda name, index: None,
    halt: Callable[[float], bool] = lambda at_s: False,
) -> Mapping[str, list[Record]]:
    """One server, a fixed time each, in order of arrival; then three tokens, 10 ms apart."""
    free_s, news = 0.0, []
    for i, at_s in enumerate(plan.arrivals_s.tolist()):
        free_s = max(free_s, at_s) + SERVICE_S
        ttft_s = free_s - at_s
        times_s = (ttft_s, ttft_s + 0.01, ttft_s + 0.02)
        news.append((free_s + 0.02, Record(i, at_s, 0.0, 4, 3, times_s)))
    records: list[Record] = []
    for ended_s, record in sorted(news, key=lambda one: one[0]):
        if halt(ended_s):
            break
        on_first("queue", record.index)
        on_record("queue", record)
        records.append(record)
    return {"queue": records}


@pytest.fixture
def measurement(monkeypatch: pytest.MonkeyPatch) -> Measurement:
    async def ask(*_: object, **__: object) -> Target:
        return TARGET

    async def nothing(*_: object) -> None: ...

    monkeypatch.setattr(goodput_run, "run_plan", _queue)
    monkeypatch.setattr(goodput_run, "ask", ask)
    monkeypatch.setattr(goodput_run, "warm_up", nothing)
    monkeypatch.setattr(goodput_run, "_SETTLE_S", 0.0)
    search = SearchConfig(rates_per_s=[4.0], tolerance=0.04)
    return Measurement(
        workload=find_workload("4x3"),
        plan=PlanConfig(rate_per_s=1.0),
        window=WindowConfig(n_requests=4_000),
        crew=ClientProcessesConfig(),
        contest=Tournament(TournamentConfig(slos=[SLO], search=search)),
        console=Console(quiet=True),
        ends_s=time.monotonic() + 1e6,
        on_run=lambda: None,
    )


STARTED = Started(Contender(name="queue", endpoints=("nowhere:1",)), [], [])


def test_the_formula_is_that_of_a_queue() -> None:
    rng = np.random.default_rng(0)
    arrivals_s = np.cumsum(rng.exponential(1 / 12.0, 200_000))
    free_s, held = 0.0, 0
    for at_s in arrivals_s.tolist():
        free_s = max(free_s, at_s) + SERVICE_S
        held += free_s - at_s <= SLO.ttft_s
    assert held / 200_000 == pytest.approx(share_served(12.0, SERVICE_S, SLO.ttft_s), abs=0.01)


async def test_the_search_finds_the_rate_that_theory_tells(measurement: Measurement) -> None:
    await measurement.search(STARTED, 0)
    contest = measurement.contest
    (found,) = contest.brackets("queue", SLO)
    assert found.low_per_s is not None
    assert found.high_per_s is not None
    right = rate_served(0.9)
    assert right == pytest.approx(13.0, abs=1.0), "not at the end of the scale"
    assert found.low_per_s * 0.95 <= right <= found.high_per_s * 1.05
    assert found.high_per_s - found.low_per_s <= 0.04 * found.high_per_s + 0.1
    for rate_per_s, tally in contest.tallies("queue", SLO).items():
        if not tally.is_hopeless:
            right = share_served(rate_per_s, SERVICE_S, SLO.ttft_s)
            assert tally.share == pytest.approx(right, abs=0.05)
    assert "TTFT alone" in table.why_missed(contest, "queue", SLO)


async def test_a_rate_beyond_capacity_is_given_up(measurement: Measurement) -> None:
    search = SearchConfig(rates_per_s=[40.0], tolerance=0.5)
    measurement.contest.config = TournamentConfig(slos=[SLO], search=search)
    measurement = replace(measurement, window=WindowConfig(n_requests=400))
    await measurement.search(STARTED, 0)
    first = measurement.contest.runs[0]
    assert "wait for their first token" in first.halted
    assert first.tally(SLO).is_hopeless


async def test_rounds_search_anew_with_other_arrivals(measurement: Measurement) -> None:
    for round_ in range(2):
        await replace(measurement, window=WindowConfig(n_requests=100)).search(STARTED, round_)
    runs = measurement.contest.runs
    assert len(measurement.contest.brackets("queue", SLO)) == 2
    keys = {(run.round, run.rate_per_s, run.seed) for run in runs}
    assert len(keys) == len(runs), "no run is repeated with the same arrivals"
    assert not {run.seed for run in runs if run.round} & {r.seed for r in runs if not r.round}


async def test_no_run_starts_that_would_end_after_the_limit(measurement: Measurement) -> None:
    with pytest.raises(OutOfTimeError, match="--resume"):
        await replace(measurement, ends_s=time.monotonic() + 5).search(STARTED, 0)
    assert measurement.contest.runs == []


def _run(rate_per_s: float, *, held: bool, late_ms: float = 0.0, name: str = "a") -> Measured:
    records = [
        Record(i, i / rate_per_s, late_ms / 1e3, 4, 2, (0.1 if held else 0.9, 0.91))
        for i in range(200)
    ]
    return Measured.of(records, contender=name, round_=0, rate_per_s=rate_per_s, seed=1, halted="")


def _contest(*runs: Measured) -> Tournament:
    slos = [Slo(0.3, 1.0), Slo(1.0, 1.0)]
    return Tournament(
        TournamentConfig(slos=slos, search=SearchConfig(rates_per_s=[4.0])), list(runs)
    )


def test_searches_share_their_runs() -> None:
    contest = _contest(_run(4.0, held=True), _run(6.0, held=False))
    assert contest.next_run("a", 0) == (5.0, 0), "the tight SLO first"
    contest = _contest(_run(4.0, held=True), _run(4.1, held=False))
    assert contest.next_run("a", 0) == (6.15, 0), "then the loose one, which both rates hold"
    assert contest.next_run("b", 0) == (4.0, 0), "another contender begins at the beginning"


def test_a_late_clients_run_is_void_and_made_again_once() -> None:
    late = _run(4.0, held=True, late_ms=50.0)
    assert _contest(late).next_run("a", 0) == (4.0, 1)
    assert _contest(late, _run(4.0, held=True)).next_run("a", 0) == (6.0, 0)
    hopeless = _contest(late, late)
    assert hopeless.next_run("a", 0) is None
    assert hopeless.client_limit_per_s("a") == 4.0
    assert hopeless.tallies("a", SLO) == {}
    assert table.format_outcome(hopeless, "a", SLO) == "–"


def test_everybody_is_first_once() -> None:
    assert [in_turn("abc", turn) for turn in range(4)] == [[*"abc"], [*"bca"], [*"cab"], [*"abc"]]
