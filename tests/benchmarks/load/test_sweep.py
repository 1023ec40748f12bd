from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from rich.console import Console

from benchmarks.load import sweep as sweeping
from benchmarks.load.client import draw_prompt
from benchmarks.load.record import Record, Slo
from benchmarks.load.sweep import SweepConfig, figures, sweep
from benchmarks.load.target import Target
from benchmarks.traffic.plan import Plan, PlanConfig
from benchmarks.traffic.workload import find_workload

TARGETS = [
    Target(name=name, endpoints=("nowhere:1",), vocab_size=50, max_context_tokens=100)
    for name in ("a", "b")
]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[int, ...], list[str]]]:
    """What was run: the seed of the prompts, and the targets loaded together. All is answered in
    0.1 s, by target b only while requests arrive slowly."""
    seen: list[tuple[tuple[int, ...], list[str]]] = []

    async def run_plan(
        plan: Plan,
        prompt_seed: Sequence[int],
        targets: Sequence[Target],
        config: object,
        on_record: Callable[[str, Record], None],
    ) -> Mapping[str, list[Record]]:
        seen.append((tuple(prompt_seed), [target.name for target in targets]))
        is_fast = len(plan) / plan.span_s > 4
        return {
            target.name: [
                Record(i, at_s, 0.0, 9, 1, () if is_fast and target.name == "b" else (0.1,))
                for i, at_s in enumerate(plan.arrivals_s.tolist())
            ]
            for target in targets
        }

    monkeypatch.setattr(sweeping, "run_plan", run_plan)
    return seen


def _config(**changes: Any) -> SweepConfig:
    plan = PlanConfig(rate_per_s=1.0, n_requests=40)
    given: dict[str, Any] = {"rates_per_s": [2.0, 8.0], "seeds": [1, 2], "plan": plan, **changes}
    return SweepConfig(slo=Slo(0.3, 0.05), **given)


async def _sweep(config: SweepConfig) -> Any:
    return await sweep(find_workload("9x1"), TARGETS, config, Console(quiet=True))


async def test_targets_take_turns_in_an_order_that_turns_too(runs: list[Any]) -> None:
    await _sweep(_config())
    in_turn = [names for seed, names in runs if len(seed) > 1]
    assert in_turn == [["a"], ["b"], ["b"], ["a"]] * 2


async def test_targets_are_loaded_at_once_on_demand(runs: list[Any]) -> None:
    await _sweep(_config(at_once=True))
    assert [names for seed, names in runs if len(seed) > 1] == [["a", "b"]] * 4


async def test_each_target_sees_the_same_prompts_and_no_prompt_twice(runs: list[Any]) -> None:
    await _sweep(_config())
    for name in ("a", "b"):
        seeds = [seed for seed, names in runs if name in names]
        assert len(set(seeds)) == len(seeds) == 5, "to warm up, then two rates of two seeds"
    first, other, again = (draw_prompt(50, seed, 3, 30) for seed in ([1, 0], [1, 1], [1, 0]))
    assert first == again != other


async def test_figures_tell_each_load_and_the_rate_that_is_served(runs: list[Any]) -> None:
    config = _config()
    told = figures(await _sweep(config), config)
    assert told["served_rate_per_s"] == {"a": 8.0, "b": 2.0}
    assert told["loads"]["8/s"]["a"]["figures"]["held_share"] == 1
    assert told["loads"]["8/s"]["b"]["figures"]["failed"] == 80
    assert told["loads"]["2/s"]["b"]["held_share_by_seed"] == {"1": 1.0, "2": 1.0}
    assert told["loads"]["2/s"]["b"]["requests"]["ttft_ms"] == [100.0] * 80
