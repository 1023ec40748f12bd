"""Settings of the scaler, as a controller checks, keeps and applies them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deploy.scaling.test_live_settings import POOLS, SEATS
from twolane.deploy.controller.desired import Desired
from twolane.deploy.errors import RefusedError
from twolane.deploy.launch.events import Event
from twolane.deploy.launch.from_cluster import inventory_of
from twolane.deploy.launch.operator_acts import OperatorActs
from twolane.deploy.launch.pools import Pools
from twolane.deploy.scaling.for_cluster import scaler_for
from twolane.deploy.scaling.live_settings import LiveScalerSettings
from twolane.deploy.spec.parse_topology import parse_topology
from twolane.deploy.spec.resolve import resolve
from twolane.v1 import acts_pb2

INVALID, PRECONDITION = 3, 9


class Controller:
    """One that is looked at between its acts; what it saves goes nowhere, or nowhere at all."""

    def __init__(self) -> None:
        topology = {"pools": POOLS, "workers": {"engine": "fake"}, "seats": 8}
        cluster = resolve(parse_topology({**topology, "scaler": {"autoscale": True, "budget": 6}}))
        self.events: list[Event] = []
        self.is_cut_off = False
        self.pools = Pools(
            inventory_of(cluster), Desired(seats=SEATS), self._save, self.events.append
        )
        self.scaler = scaler_for(cluster, self.pools.inventory, lambda name, text: None)
        never: Any = None
        self.acts = OperatorActs(
            self.pools,
            self.events.append,
            never,
            self.scaler,
            settings=LiveScalerSettings(cluster, self.scaler, never),
            fit_of=never,
            read_log=never,
        )

    async def _save(self, desired: Desired) -> None:
        if self.is_cut_off:
            raise RefusedError("no agent answers")

    async def keep(
        self, revision: int, values: dict[str, str], *, dry_run: bool = False
    ) -> acts_pb2.ControllerActResult:
        asked = acts_pb2.KeepConfigRequest(
            act=acts_pb2.Act(dry_run=dry_run), revision=revision, values=values
        )
        return await self.acts.do(acts_pb2.ControllerAct(who="operator/anna", keep_config=asked))

    @property
    def budget(self) -> tuple[int, int, str]:
        """As starts, the law and the next controller have it."""
        assert self.scaler is not None
        status = self.scaler.status(0.0, self.pools.desired)
        kept = dict(self.pools.desired.config).get("scaler.budget", "")
        return self.pools.inventory.most_gpus, status.budget_gpus, kept


async def test_what_is_set_is_saved_first_and_then_holds() -> None:
    controller = Controller()
    done = await controller.keep(1, {"scaler.budget": "3", "log_level": '"debug"'})
    assert [(its.subject, its.after) for its in done.response.changes] == [
        ("log_level", '"debug"'),
        ("scaler.budget", "3"),
        ("workers", "drain until they hold 3, one at a time"),
    ]
    assert controller.budget == (3, 3, "3")
    controller.is_cut_off = True
    refused = await controller.keep(2, {"scaler.budget": "5"})
    assert (refused.code, refused.error) == (PRECONDITION, "no agent answers")
    assert controller.budget == (3, 3, "3")


@pytest.mark.parametrize(
    ("value", "code"), [("0", INVALID), ("9", INVALID), ("{", INVALID), ("4", 0)]
)
async def test_what_is_refused_or_tried_changes_nothing_and_is_audited(
    value: str, code: int
) -> None:
    controller = Controller()
    answer = await controller.keep(1, {"scaler.budget": value}, dry_run=not code)
    assert answer.code == code
    assert controller.budget == (6, 6, "")
    assert controller.pools.config().revision == 0
    (event,) = controller.events
    refused, would_do = (
        " scaler.budget: refused: scaler.budget",
        ": would do: scaler.budget: - -> 4",
    )
    assert event.text.startswith(f"operator/anna: config{refused if code else would_do}")


async def test_what_is_audited_names_what_has_changed_and_what_it_was() -> None:
    controller = Controller()
    await controller.keep(1, {"log_level": '"debug"', "scaler.budget": "4"})
    controller.events.clear()
    await controller.keep(2, {"log_level": '"info"', "scaler.budget": "4"})
    (event,) = controller.events
    assert event.text == 'operator/anna: config: log_level: "debug" -> "info"'


async def test_what_is_audited_names_no_setting_where_files_are_read_again() -> None:
    controller = Controller()
    await controller.keep(1, {"log_level": '"debug"'})
    controller.events.clear()
    await controller.keep(2, {"log_level": '"debug"'})
    (event,) = controller.events
    assert event.text == "operator/anna: config: no change"


async def test_routers_that_have_set_something_without_a_controller_are_believed() -> None:
    controller = Controller()
    assert not (await controller.keep(3, {"log_level": '"debug"'})).code
    again = await controller.keep(3, {"log_level": '"info"'})
    assert "the configuration is at revision 3, not 2" in again.error


async def test_what_an_older_router_does_not_know_stays_as_it_was_set() -> None:
    controller = Controller()
    await controller.keep(1, {"scaler.budget": "3"})
    done = await controller.keep(2, {"log_level": '"debug"'})
    assert [its.subject for its in done.response.changes] == ["log_level"]
    assert controller.budget == (3, 3, "3")
    kept = controller.pools.config()
    assert dict(kept.values) == {"scaler.budget": "3", "log_level": '"debug"'}


async def test_a_setting_is_no_change_of_a_size_by_hand() -> None:
    """After which nothing would shrink for minutes, though the budget was cut."""
    controller = Controller()
    await controller.keep(1, {"scaler.budget": "3", "log_level": '"debug"'})
    assert controller.scaler is not None
    assert controller.scaler._by_hand_s is None
