"""The fluid model keeps its own laws, and the law drives it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from benchmarks.results import RESULTS
from twolane.deploy.controller.forecast import ForecastConfig
from twolane.deploy.controller.limits import Limits, PoolLimits
from twolane.deploy.controller.observation import Role, State
from twolane.deploy.controller.priors import hardware
from twolane.deploy.simulator import __main__ as command
from twolane.deploy.simulator import experiment, prompts
from twolane.deploy.simulator.cluster import Cluster, ClusterConfig, Slo
from twolane.deploy.simulator.colocated import Colocated
from twolane.deploy.simulator.controllers import FairHpa, the_law
from twolane.deploy.simulator.experiment import bars, run, static_peak, workers_of
from twolane.deploy.simulator.requests import Requests, poisson, uniform_lengths
from twolane.deploy.simulator.scenarios import HELD_OUT, SCENARIOS, TUNING, Scenario
from twolane.deploy.simulator.tally import Tally
from twolane.deploy.simulator.workers import SimWorker
from twolane.router.config import PIPELINED, AdmissionConfig
from twolane.router.dispatch.admission import WAIT_SHARE
from twolane.router.tenants.fair_line import IN_TIME_EACH

H200 = hardware("h200")
SLO = Slo(ttft_s=0.5, gap_s=0.020)
CONFIG = ClusterConfig(hardware=H200, slo=SLO, start_s=20.0)


def traffic(rates: list[tuple[float, float]], seed: int = 1) -> Requests:
    """Rates per second with their durations, of 1,000 tokens in and 200 out."""
    rng = np.random.default_rng(seed)
    steps = np.concatenate([np.full(int(for_s / 0.5), rate) for rate, for_s in rates])
    arrivals_s, _ = poisson(steps, 0.5, rng)
    return uniform_lengths(arrivals_s, 1_000, 200, 0.3, rng)


def with_law(requests: Requests, until_s: float, *, budget: int = 8, minimum: int = 1,
             failing: frozenset[int] = frozenset(), start: tuple[int, int] = (1, 1),
             ) -> tuple[Cluster, Tally]:  # fmt: skip
    pools = {role: PoolLimits(minimum=minimum) for role in Role}
    limits = Limits(budget_gpus=budget, pools=pools, idle_s=120.0)
    config = ClusterConfig(hardware=H200, slo=SLO, start_s=20.0, failing=failing)
    controller = the_law(H200, SLO, limits, ForecastConfig())
    cluster = Cluster(config, requests, workers_of(*start), controller)
    return cluster, cluster.run(until_s)


def test_every_request_ends_and_none_is_lost() -> None:
    requests = traffic([(20, 60)])
    tally = Cluster(CONFIG, requests, workers_of(1, 1)).run(120)
    assert (tally.requests, tally.missed, tally.lost) == (len(requests), 0, 0)
    assert tally.gpu_s == pytest.approx(2 * 120)


def test_the_law_begins_with_the_cluster_and_drains_none_before_it_knows_four_minutes() -> None:
    requests = traffic([(2, 400)])
    for until_s, drains in ((239, False), (300, True)):
        _, tally = with_law(requests, until_s, start=(2, 3))
        assert (tally.actions.get("drain", 0) > 0) is drains


def test_rows_take_as_long_as_their_steps() -> None:
    worker = SimWorker("w", frozenset({Role.DECODE}), State.READY, 0.0, 0.0)
    for index in range(50):
        worker.join(index, 1_000, 100, 0)
    now = 0.0
    ended: list[tuple[int, float]] = []
    while len(ended) < 50:
        now += 0.05
        ended += worker.advance(now, 0.05, H200, 0.020)
    assert now - 0.05 < 100 * H200.decode.step_s(50, 50 * 1_050) <= now
    assert worker.context == pytest.approx(0, abs=1e-6)


def test_a_prompt_waits_for_a_place_in_decode() -> None:
    """Not for a place of its own: its first token is late, and the signals say why."""
    n = H200.rows + 40
    requests = Requests(np.zeros(n), np.full(n, 16), np.full(n, 2_000))
    cluster = Cluster(CONFIG, requests, workers_of(1, 1))
    cluster.run(10)
    signals = cluster.signals()
    assert (signals.rows, signals.unplaced, signals.waiting) == (H200.rows, 40, 0)


def test_a_full_queue_refuses_what_comes_as_the_routers_does() -> None:
    """The refused ones have missed the SLO, and the law does not hear of them."""
    n, config = 5_000, AdmissionConfig()
    requests = Requests(np.zeros(n), np.full(n, 1_000), np.full(n, 2))
    cluster = Cluster(CONFIG, requests, workers_of(1, 1))
    tally = cluster.run(60)
    placed = math.ceil(config.max_prefill_backlog_tokens / 1_000)
    assert tally.refused == n - placed - config.max_queued
    assert tally.requests == n
    assert tally.missed >= tally.refused
    signals = cluster.signals()
    assert signals.requests == signals.answers == n - tally.refused
    assert signals.prompt_tokens == 1_000 * signals.requests


def test_what_can_be_in_time_goes_first_where_the_router_knows_the_slo() -> None:
    """A worker for two thirds of the load serves all late, or more than half in time."""
    requests = traffic([(60, 40)])
    missed = []
    for knows_slo in (False, True):
        config = replace(CONFIG, knows_slo=knows_slo)
        tally = Cluster(config, requests, workers_of(1, 2)).run(45)
        missed.append(tally.missed_share)
    assert missed[0] > 0.9
    assert missed[1] < 0.5


def test_the_next_prompt_is_there_when_one_that_is_longer_than_the_bound_is_computed() -> None:
    """Two prompts are at the worker, and no more."""
    n = 20
    requests = Requests(np.zeros(n), np.full(n, 3 * prompts.SLO_BACKLOG), np.full(n, 2))
    cluster = Cluster(replace(CONFIG, knows_slo=True), requests, workers_of(1, 1))
    (worker,) = (its for its in cluster.workers if its.takes(Role.PREFILL))
    cluster.run(0.5)
    assert worker.prompts(cluster.now) == 2


def test_all_of_a_prompt_counts_until_it_is_computed_as_at_the_router() -> None:
    """The third of 6,000 tokens comes with the first one's end, not when 8,192 are left of two."""
    requests = Requests(np.zeros(3), np.full(3, 6_000), np.full(3, 2))
    step_s = H200.prefill.step_s(2_048, 2_048**2)
    config = replace(CONFIG, knows_slo=True, dt_s=step_s / 4)
    for steps, there in ((2.9, 2), (3.3, 2)):
        cluster = Cluster(config, requests, workers_of(1, 1))
        cluster.run(steps * step_s)
        assert cluster.workers[0].prompts(cluster.now) == there
        assert cluster.signals().waiting == 1


def test_prompts_and_rows_of_one_worker_share_steps_as_they_do_step_by_step() -> None:
    """Of a worker that flipped: rows wait for prompts, which have what the rows leave of a step."""
    rows, n = 100, 80
    requests = Requests(
        np.repeat([0.0, 0.5], [rows, n]),
        np.repeat([16, 2_048], [rows, n]),
        np.repeat([140, 2], [rows, n]),
    )
    stepwise = Colocated(H200, SLO.gap_s)
    for index in range(rows + n):
        at_s, prompt = float(requests.arrivals_s[index]), int(requests.prompt_tokens[index])
        stepwise.add(at_s, index, prompt, int(requests.output_tokens[index]))
    first_s, late, done_s = ([math.inf] * (rows + n) for _ in range(3))
    stepwise.run_until(9.0, first_s, late, done_s)
    assert first_s[rows] < done_s[0] == done_s[rows - 1] < first_s[-1]
    for share, have_ended in ((0.95, False), (1.05, True)):
        cluster = Cluster(replace(CONFIG, dt_s=0.005), requests, [frozenset(Role)])
        cluster.run(share * done_s[0])
        computed = int(np.searchsorted(first_s[rows:], cluster.now))
        assert computed <= n - cluster.signals().waiting <= computed + 2
        assert (cluster.signals().answers > rows) is have_ended


def test_a_worker_with_rows_takes_its_turn_among_equals_as_at_the_router() -> None:
    """Of idle workers the one that was given none for longest, rows or not."""
    requests = Requests(np.array([1.0, 2.0, 99.0]), np.full(3, 16), np.full(3, 2_000))
    cluster = Cluster(CONFIG, requests, workers_of(2, 1))
    first, second, _ = cluster.workers
    first.join(2, 16, 2_000, 0)
    cluster.run(3.0)
    assert (first.last_given, second.last_given) == (1, 2)


def test_a_prompt_waits_for_the_steps_of_rows_that_are_planned() -> None:
    """For one and a half on average, as a worker plans a step ahead."""
    rows = 50
    alone_s = H200.prefill.step_s(1_024 + rows, 1_024**2) + H200.first_token_s
    for steps, late in ((1.0, 1), (2.0, 0)):
        requests = Requests(np.array([1.0, 99.0]), np.full(2, 1_024), np.array([2, 2_000]))
        ttft_s = alone_s + steps * H200.decode.step_s(rows, rows * 16)
        config = replace(CONFIG, slo=Slo(ttft_s=ttft_s, gap_s=0.020), dt_s=0.01)
        cluster = Cluster(config, requests, workers_of(1, 1))
        for _ in range(rows):
            cluster.workers[0].join(1, 16, 2_000, 0)
        assert cluster.run(2.0).late_first == late


@pytest.mark.parametrize(
    ("each_s", "max_wait_s", "least", "most"),
    [(0.02, 5.0, 500, 700), (0.02, math.inf, 0, 0), (0.0, 5.0, 0, 0)],
)
def test_what_was_deferred_ends_when_it_has_waited_for_too_long_if_others_go_first(
    each_s: float, max_wait_s: float, least: int, most: int
) -> None:
    requests = Requests(
        np.linspace(0.0, 1_000 * each_s, 1_000), np.full(1_000, 4_000), np.full(1_000, 2)
    )
    config = replace(CONFIG, knows_slo=True, max_wait_s=max_wait_s)
    tally = Cluster(config, requests, workers_of(1, 1)).run(200)
    assert tally.requests == 1_000
    assert least <= tally.refused <= most


def test_the_queue_is_the_routers() -> None:
    config = AdmissionConfig()
    assert config.max_prefill_backlog_tokens == prompts.MOST_BACKLOG
    assert config.slo_prefill_backlog_tokens == prompts.SLO_BACKLOG
    assert config.max_wait_s == CONFIG.max_wait_s
    assert prompts.PIPELINED == PIPELINED
    assert (config.max_queued, config.extra_rows) == (prompts.MOST_QUEUED, prompts.EXTRA_ROWS)
    assert prompts.WAIT_SHARE == WAIT_SHARE
    assert prompts.IN_TIME_EACH == IN_TIME_EACH


def test_the_law_grows_into_a_rise_and_gives_back_what_it_took() -> None:
    cluster, tally = with_law(traffic([(20, 300), (90, 300), (20, 900)]), 1_500)
    most = max(gpus for _, _, _, gpus, _ in tally.sizes)
    assert 5 <= most <= 8
    assert tally.sizes[-1][3] <= 4
    assert tally.lost == 0
    assert tally.most_gpus <= 8
    assert tally.missed_share < 0.1
    assert cluster.held_gpus == tally.sizes[-1][3]


def test_starts_that_never_get_ready_give_their_gpus_back() -> None:
    cluster, tally = with_law(
        traffic([(20, 120), (90, 900)]), 900, failing=frozenset({0, 1}), budget=6
    )
    assert tally.actions["cancel"] == 2
    assert tally.most_gpus <= 6
    ready = sum(worker.state is State.READY for worker in cluster.workers)
    assert ready >= 4


def test_it_goes_to_zero_and_comes_back_for_the_first_request() -> None:
    requests = traffic([(5, 120), (0, 600), (5, 300)])
    cluster, tally = with_law(requests, 1_080, minimum=0)
    idle = [gpus for at_s, _, _, gpus, _ in tally.sizes if 420 <= at_s <= 660]
    assert idle
    assert set(idle) == {0}
    assert cluster.held_gpus >= 1
    assert tally.requests == len(requests), "all were answered"
    assert tally.lost == 0


def test_the_fair_hpa_drains_and_never_kills() -> None:
    controller = FairHpa(8, 42_000, 150)
    requests = traffic([(20, 200), (90, 300), (10, 900)])
    tally = Cluster(CONFIG, requests, workers_of(1, 1), controller).run(1_400)
    assert tally.actions["start"] > 0
    assert tally.actions["drain"] > 0
    assert (tally.lost, tally.most_gpus <= 8) == (0, True)


def test_a_static_peak_is_the_smallest_that_holds_the_busiest_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(experiment, "_PEAK_S", 240.0)
    requests = traffic([(5, 300), (70, 240), (5, 300)])
    prefill, decode = static_peak(requests, H200)
    part = traffic([(70, 240)], seed=2)
    assert Cluster(CONFIG, part, workers_of(prefill, decode)).run(260).missed_share < 0.02
    smaller = Cluster(CONFIG, part, workers_of(prefill - 1, decode)).run(260).missed_share
    assert smaller > 0.015


def test_no_trace_was_used_for_tuning_and_for_results() -> None:
    assert not {*TUNING} & {*HELD_OUT}
    assert {name for name, _ in [*TUNING, *HELD_OUT]} == {*SCENARIOS}


@pytest.mark.parametrize("name", ["azure-conv", "azure-code"])
def test_azure_traces_keep_their_lengths(name: str) -> None:
    found = SCENARIOS[name](np.random.default_rng(1)).requests
    mean = float(found.prompt_tokens.mean())
    assert mean == pytest.approx({"azure-conv": 1_155, "azure-code": 2_048}[name], rel=0.01)


def test_bars_tell_which_were_held() -> None:
    requests = traffic([(20, 120)])
    case = Scenario(requests, 150.0, 6, 2, 2)
    found = bars("swings", [run(one, case) for one in ("law", "no flips")], case.budget)
    assert [bar.name for bar in found] == [
        "requests lost by scaling", "GPUs at most", "actions in the busiest hour", "missed, %",
        "missed, of what no flips missed",
    ]  # fmt: skip
    assert all(bar.is_held for bar in found[:4])


def test_a_bar_whose_contender_was_not_run_is_missing_and_not_held() -> None:
    case = Scenario(traffic([(20, 120)]), 150.0, 6, 2, 2)
    law = [run("law", case)]
    for name, n_missing in (("diurnal", 2), ("swings", 1), ("quick", 1), ("zero", 0)):
        missing = [bar for bar in bars(name, law, case.budget) if bar.value is None]
        assert len(missing) == n_missing, name
        assert not any(bar.is_held for bar in missing)
        assert all(str(bar).startswith("MISSING") for bar in missing)


def small_run(
    trace: str, contender: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Result, dict[str, Any]]:
    """The command on two minutes of traffic under that name, and what it saves."""
    small = Scenario(traffic([(20, 120)]), 150.0, 6, 2, 2)
    monkeypatch.setattr(command, "HELD_OUT", ((trace, 1),))
    monkeypatch.setattr(command, "scenario", lambda name, seed: small)
    done = CliRunner().invoke(command.main, ["--folder", str(folder), "--contender", contender])
    return done, json.loads((folder / "autoscaler.json").read_text())


def test_the_command_fails_where_a_bar_cannot_be_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, saved = small_run("swings", "law", tmp_path, monkeypatch)
    assert done.exit_code == 1, done.output
    assert "MISSING missed, of what no flips missed: not run" in done.output
    (missing,) = [bar for bar in saved["figures"]["swings, seed 1"]["bars"] if not bar["held"]]
    assert missing["value"] is None


def test_saved_results_have_the_names_that_their_commands_give_them() -> None:
    found = sorted(RESULTS.glob("autoscaler*.json"))
    assert found
    plots = set()
    for path in found:
        told = json.loads(path.read_text())
        words = told["command"].split()
        name = words[words.index("--name") + 1] if "--name" in words else "autoscaler"
        assert (path.stem, told["name"]) == (name, name)
        cases = [case.split(", seed ") for case in told["figures"]]
        plots |= {f"{name}_{trace}_{seed}.png" for trace, seed in cases}
    assert {path.name for path in RESULTS.glob("autoscaler*.png")} == plots


def test_the_command_saves_figures_and_a_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, saved = small_run("small", "tight", tmp_path, monkeypatch)
    assert done.exit_code == 0, done.output
    case = saved["figures"]["small, seed 1"]
    assert {*case["contenders"]} == {"law", "tight"}
    assert case["contenders"]["law"]["lost_by_scaling"] == 0
    assert saved["commit"]
    assert (tmp_path / "autoscaler_small_1.png").read_bytes().startswith(b"\x89PNG")
