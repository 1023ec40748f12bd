"""The autoscaler that a topology asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from twolane.deploy.controller.scaler import Scaler
from twolane.deploy.errors import WrongTopologyError
from twolane.deploy.launch.from_cluster import inventory_of
from twolane.deploy.scaling.for_cluster import scaler_for
from twolane.deploy.spec.parse_topology import parse_topology
from twolane.deploy.spec.resolve import resolve

POOLS: list[dict[str, Any]] = [{"role": "prefill"}, {"role": "decode"}]


def scaler(pools: list[dict[str, Any]] = POOLS, **its: Any) -> Scaler | None:
    options: dict[str, Any] = {"autoscale": True, **its}
    topology = parse_topology({"pools": pools, "workers": {"engine": "fake"}, "scaler": options})
    cluster = resolve(topology)
    return scaler_for(cluster, inventory_of(cluster), lambda name, text: None)


def test_cluster_that_is_not_asked_to_does_not_size_its_pools() -> None:
    assert scaler(autoscale=False) is None
    assert scaler(budget=6) is not None


@pytest.mark.parametrize(
    ("its", "why"),
    [
        (
            {"budget": 1},
            "the fewest workers hold 2, more than the budget, which is 1 "
            r"\(--budget, --min-prefill, --min-decode\)",
        ),
        ({"budget": 1, "min_prefill": 0, "min_decode": 0}, "a prefill and a decode worker hold 2"),
        ({"budget": 3, "min_prefill": 3}, "the fewest workers hold 4, more than the budget"),
        ({"hardware": "abacus"}, "'abacus' was not measured; there is"),
        ({"hardware": "none.json"}, r"none.json.* \(--hardware\)"),
    ],
)
def test_scaler_that_cannot_be_is_refused_in_words(its: dict[str, Any], why: str) -> None:
    with pytest.raises(WrongTopologyError, match=why):
        scaler(**its)


def test_more_workers_than_the_budget_are_refused() -> None:
    with pytest.raises(
        WrongTopologyError, match=r"begin with hold 5.* \(--budget, --prefill, --decode\)"
    ):
        scaler([{"role": "prefill", "workers": 4}, {"role": "decode"}], budget=4)


def test_pools_that_do_both_are_refused() -> None:
    with pytest.raises(WrongTopologyError, match=r"one of decode .*\(--prefill, --decode, --col"):
        scaler([{"role": "both"}])


def test_file_without_the_figures_of_a_worker_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "card.json"
    file.write_text('{"gpu": "card"}')
    with pytest.raises(WrongTopologyError, match="has not the figures of a worker"):
        scaler(hardware=str(file))
