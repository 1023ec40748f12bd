"""Settings of the scaler that operators change while the cluster runs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from twolane.deploy.controller.desired import Desired, Mode, Pin, Rollout, Seat
from twolane.deploy.controller.seats import Inventory
from twolane.deploy.errors import RefusedError
from twolane.deploy.launch.from_cluster import inventory_of
from twolane.deploy.scaling.for_cluster import scaler_for
from twolane.deploy.scaling.live_settings import LiveScalerSettings
from twolane.deploy.spec.parse_topology import parse_topology
from twolane.deploy.spec.resolve import resolve
from twolane.errors import InvalidRequestError
from twolane.v1 import cluster_pb2

POOLS: list[dict[str, Any]] = [{"role": "prefill"}, {"role": "decode"}]
SEATS = tuple(
    Seat(name=f"{pool}-{i}", pool=pool) for pool in ("prefill", "decode") for i in range(2)
)


class Controller:
    """What one has of these, with room for 8 workers, on CPUs."""

    def __init__(self, desired: Desired | None = None, **its: Any) -> None:
        options: dict[str, Any] = {"autoscale": True, "budget": 6, **its}
        topology = {"pools": POOLS, "workers": {"engine": "fake"}, "scaler": options, "seats": 8}
        cluster = resolve(parse_topology(topology))
        self.told: list[str] = []
        self.inventory: Inventory = inventory_of(cluster)
        self.scaler = scaler_for(cluster, self.inventory, lambda name, text: None)
        self.settings = LiveScalerSettings(cluster, self.scaler, self.told.append)
        self.desired = desired or Desired(seats=SEATS)
        self.inventory = self.settings.hold_kept(self.inventory, dict(self.desired.config))

    def set(self, **values: Any) -> list[str]:
        """Set them as an act does; what follows from them, in words."""
        texts = {name.replace("__", "."): json.dumps(value) for name, value in values.items()}
        texts = {**dict(self.desired.config), **texts}
        changes = self.settings.check(self.desired, self.inventory, texts)
        self.desired = replace(self.desired, config=tuple(sorted(texts.items())))
        self.inventory = self.settings.hold(self.inventory, texts)
        return [f"{its.subject}: {its.before} > {its.after}" for its in changes]

    def field(self, name: str) -> cluster_pb2.ConfigField:
        (found,) = [its for its in self.settings.fields() if its.name == f"scaler.{name}"]
        return found

    def status(self) -> cluster_pb2.ScalerStatus:
        assert self.scaler is not None
        return self.scaler.status(0.0, self.desired)


def test_what_is_set_holds_in_the_law_the_budget_and_for_the_next_controller() -> None:
    first = Controller()
    assert first.inventory.most_gpus == first.status().budget_gpus == 6
    assert first.set(scaler__budget=5, scaler__slo_ttft_s=0.3, scaler__slo_gap_s=0.01) == []
    for each in (first, Controller(first.desired)):
        status = each.status()
        assert each.inventory.most_gpus == status.budget_gpus == 5
        assert (status.ttft_s, status.gap_s) == (0.3, 0.01)
        assert each.field("budget").value == "5"
        assert each.field("budget").source == "operator"
        assert not each.told


def test_each_live_setting_reaches_the_law() -> None:
    controller = Controller()
    controller.set(
        scaler__budget=7,
        scaler__min_prefill=2,
        scaler__max_prefill=3,
        scaler__min_decode=2,
        scaler__max_decode=4,
        scaler__idle_s=60.0,
        scaler__slo_ttft_s=0.3,
        scaler__slo_gap_s=0.01,
    )
    assert controller.scaler is not None
    limits, config = controller.scaler._limits, controller.scaler._observer.config
    bounds = [(its.minimum, its.maximum) for its in limits.pools.values()]
    assert (limits.budget_gpus, limits.idle_s, bounds) == (7, 60.0, [(2, 3), (2, 4)])
    assert (config.ttft_s, config.gap_s) == (0.3, 0.01)
    live = {its.name for its in controller.settings.fields() if its.live}
    assert live == {*dict(controller.desired.config)}, "a new one belongs into this test"


def test_null_is_the_default_and_a_file_is_named_as_the_source() -> None:
    controller = Controller(min_decode=2)
    assert controller.field("min_decode").source == "file"
    assert controller.field("max_decode").source == "default"
    assert not controller.field("flips").live
    controller.set(scaler__min_decode=None)
    assert controller.field("min_decode").value == "1"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"scaler__budget": 0}, "scaler.budget is 0: input should be"),
        ({"scaler__budget": "many"}, "scaler.budget is"),
        ({"scaler__budget": 9}, "scaler.budget is 9, and there is room for 8"),
        ({"scaler__budget": 1}, "the fewest workers hold 2, more than the budget, which is 1"),
        ({"scaler__min_decode": 6}, "the fewest workers hold 7, more than the budget, which is 6"),
        ({"scaler__min_decode": 3, "scaler__max_decode": 2}, "min_decode is 3, more than max_deco"),
        ({"scaler__min_prefill": 0}, "only both pools together may go to zero"),
        ({"scaler__slo_gap_s": -1}, "scaler.slo_gap_s is -1"),
        ({"scaler__nonsense": 1}, "there is no setting 'scaler.nonsense'"),
    ],
)
def test_wrong_value_is_refused_and_nothing_changes(values: dict[str, Any], why: str) -> None:
    controller = Controller()
    before = controller.status()
    with pytest.raises(InvalidRequestError, match=why):
        controller.set(scaler__slo_ttft_s=0.1, **values)
    assert controller.status() == before
    assert controller.desired.config == ()


@pytest.mark.parametrize(
    ("desired", "its", "values", "why"),
    [
        ({}, {}, {"scaler__flips": True}, "scaler.flips needs a restart: .* --flips true"),
        ({}, {"autoscale": False}, {"scaler__budget": 4}, "start it with --autoscale"),
        (
            {"pins": (Pin(pool="decode", n=4),)},
            {},
            {"scaler__budget": 4},
            r"pools need 5: decode at 4 \(pinned",
        ),
        (
            {"pins": (Pin(pool="decode", n=3),)},
            {"min_prefill": 0, "min_decode": 0},
            {"scaler__budget": 3},
            r"pools need 4: decode at 3 \(pinned",
        ),
        (
            {"rollout": Rollout(before="", after="/models/new")},
            {},
            {"scaler__budget": 4},
            "a rollout is under way",
        ),
    ],
)
def test_what_cannot_be_now_is_refused(
    desired: dict[str, Any], its: dict[str, Any], values: dict[str, Any], why: str
) -> None:
    with pytest.raises(RefusedError, match=why):
        Controller(Desired(seats=SEATS, **desired), **its).set(**values)


def test_budget_without_room_for_a_worker_of_each_role_is_refused() -> None:
    """Also where pools may go to zero: from there they come back to both."""
    controller = Controller(min_prefill=0, min_decode=0)
    why = "a prefill and a decode worker hold 2, more than the budget, which is 1$"
    with pytest.raises(InvalidRequestError, match=why):
        controller.set(scaler__budget=1)
    controller.set(scaler__budget=2)
    assert controller.status().budget_gpus == 2


def test_what_follows_is_told_beside_the_change() -> None:
    assert Controller().set(scaler__max_decode=1) == ["pool decode: 2 > at most 1"]
    assert Controller().set(scaler__min_decode=3) == ["pool decode: 2 > at least 3"]
    assert Controller().set(scaler__budget=3) == [
        "workers: hold 4 > drain until they hold 3, one at a time"
    ]
    paused = Controller(Desired(seats=SEATS, mode=Mode.PAUSED))
    assert paused.set(scaler__budget=3) == ["workers: hold 4 > stay: the scaler is paused"]


def test_settings_of_routers_are_none_of_its_business() -> None:
    controller = Controller(autoscale=False)
    assert controller.set(log_level="debug", router__max_queued=7) == []
    assert not any(its.live for its in controller.settings.fields())


def test_kept_settings_that_no_longer_fit_are_told_and_can_be_mended() -> None:
    kept = Desired(seats=SEATS, config=(("scaler.max_decode", "2"),))
    controller = Controller(kept, min_decode=3)
    assert controller.told == [
        "the settings that were kept do not fit this cluster: "
        "min_decode is 3, more than max_decode, which is 2"
    ]
    assert controller.field("max_decode").value == "1024"
    controller.set(scaler__max_decode=4)
    assert controller.field("max_decode").value == "4"
