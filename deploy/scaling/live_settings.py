"""The scaler's settings as operators see and set them while the cluster runs: scaler.budget,
scaler.slo_ttft_s, scaler.min_decode.

The controller keeps what they have set with what is desired, so that the next controller has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from twolane.deploy.controller.acts import check_not_rolling
from twolane.deploy.controller.desired import Change, Desired, Mode
from twolane.deploy.controller.limits import Limits
from twolane.deploy.controller.observation import Role
from twolane.deploy.controller.scaler import Scaler
from twolane.deploy.controller.seats import Inventory
from twolane.deploy.controller.sizing import pins_by_role, pools_by_role
from twolane.deploy.errors import RefusedError
from twolane.deploy.scaling.for_cluster import capacity, limits_of
from twolane.deploy.spec.cluster_spec import ClusterSpec
from twolane.deploy.spec.declared_options import declared
from twolane.deploy.spec.live_options import SCALER, NamedOption, by_name, read_live, shown
from twolane.deploy.spec.settings import ScalerSettings
from twolane.errors import InvalidRequestError, PreconditionError
from twolane.v1 import cluster_pb2

_OPTIONS = by_name(NamedOption(SCALER, its) for its in declared(ScalerSettings))


class LiveScalerSettings:
    """Of one controller. `scaler`: None where the cluster does not size its pools. `tell` hears, in
    words, of what is wrong. `values` are what operators have set, JSON by name; settings that are
    not the scaler's are left out."""

    def __init__(
        self, cluster: ClusterSpec, scaler: Scaler | None, tell: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._scaler = scaler
        self._tell = tell
        self._asked: Mapping[str, str] = {}  # what `hold` had last
        self._held: Mapping[str, str] = {}  # the same, unless it did not fit

    def fields(self) -> list[cluster_pb2.ConfigField]:
        """All of them, as they hold."""
        its = self._with(self._held)
        return [
            shown(
                option,
                getattr(its, option.its.field),
                live=option.its.option.is_live and self._scaler is not None,
                is_set=option.name in self._held,
            )
            for option in _OPTIONS.values()
        ]

    def check(
        self, desired: Desired, inventory: Inventory, values: Mapping[str, str]
    ) -> list[Change]:
        """What follows from these, beside their own changes. Raises `InvalidRequestError` for a
        wrong name or value, and `RefusedError` for what cannot be now."""
        own, former = _own(values), _own(dict(desired.config))
        names = [name for name, value in own.items() if former.get(name) != value]
        if not names:
            return []
        if self._scaler is None:
            raise RefusedError("this cluster does not size its pools: start it with --autoscale")
        check_not_rolling(desired)
        try:
            its = self._with(own)
            limits = limits_of(replace(self._cluster, scaler=its), inventory)
        except PreconditionError as error:
            raise RefusedError(error.message) from error
        except ValueError as error:
            raise InvalidRequestError(str(error), field=", ".join(names)) from error
        if f"{SCALER}.budget" in names and limits.budget_gpus > (most := capacity(inventory)):
            raise InvalidRequestError(
                f"{SCALER}.budget is {limits.budget_gpus}, and there is room for {most}",
                field=f"{SCALER}.budget",
            )
        _check_pins(desired, inventory, limits)
        return _consequences(desired, inventory, limits)

    def hold(self, inventory: Inventory, values: Mapping[str, str]) -> Inventory:
        """Make these hold, and return the inventory with their budget. Raises
        `InvalidRequestError` for what does not fit this cluster; then what was before holds."""
        own = _own(values)
        if own == self._asked or self._scaler is None:
            return inventory
        self._asked = own
        try:
            its = self._with(own)
            limits = limits_of(replace(self._cluster, scaler=its), inventory)
        except (PreconditionError, ValueError) as error:
            raise InvalidRequestError(str(error), field=SCALER) from error
        inventory = replace(inventory, most_gpus=its.budget or 0)
        self._scaler.configure(inventory, limits, ttft_s=its.slo_ttft_s, gap_s=its.slo_gap_s)
        self._held = own
        return inventory

    def hold_kept(self, inventory: Inventory, values: Mapping[str, str]) -> Inventory:
        """`hold` what the controller before has kept. What does not fit is told."""
        try:
            return self.hold(inventory, values)
        except InvalidRequestError as error:
            self._tell(f"the settings that were kept do not fit this cluster: {error}")
            return inventory

    def _with(self, own: Mapping[str, str]) -> ScalerSettings:
        """Raises as `read_live`."""
        found = {
            _OPTIONS[name].its.field: value
            for name, text in own.items()
            for value in [read_live(_OPTIONS, name, text)]
        }
        try:
            return replace(self._cluster.scaler, **found)
        except ValueError as error:
            raise InvalidRequestError(str(error), field=", ".join(own)) from error


def _own(values: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if name.startswith(f"{SCALER}.")}


def _check_pins(desired: Desired, inventory: Inventory, limits: Limits) -> None:
    """Raises `RefusedError` if pools are pinned at more than the budget leaves beside one worker of
    each other pool."""
    pins = pins_by_role(desired, pools_by_role(inventory))
    held = sum(pins.get(role, max(1, its.minimum)) * its.gpus for role, its in limits.pools.items())
    if held > limits.budget_gpus:
        pinned = ", ".join(f"{pin.pool} at {pin.n}" for pin in desired.pins)
        raise RefusedError(
            f"the budget would be {limits.budget_gpus}, and pools need {held}: {pinned} (pinned; "
            "`twolane scale POOL=auto` lifts it)"
        )


def _consequences(desired: Desired, inventory: Inventory, limits: Limits) -> list[Change]:
    """Workers that the law starts or drains because of limits alone."""
    found = []
    for role, pool in pools_by_role(inventory).items():
        n, its = len(desired.staying(pool.name)), limits.pools[Role(role)]
        if desired.pin(pool.name) is not None or n == its.within(n):
            continue
        after = f"at least {its.minimum}" if n < its.minimum else f"at most {its.maximum}"
        found.append(Change(subject=f"pool {pool.name}", before=f"{n}", after=after))
    held = sum(max(1, len(seat.devices)) for seat in desired.seats)
    if held > limits.budget_gpus:
        after = f"drain until they hold {limits.budget_gpus}, one at a time"
        if desired.mode not in ("", Mode.ON):
            after = f"stay: the scaler is {desired.mode}"
        found.append(Change(subject="workers", before=f"hold {held}", after=after))
    return found
