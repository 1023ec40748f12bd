"""The running law, from reports to what is desired, without a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from tests.deploy.controller.inventories import inventory
from twolane.deploy.controller.desired import Desired, Mode, Rollout, Seat
from twolane.deploy.controller.limits import Limits, PoolLimits
from twolane.deploy.controller.observation import Role
from twolane.deploy.controller.observer import ObserverConfig
from twolane.deploy.controller.priors import hardware
from twolane.deploy.controller.reconcile import Phase, Seen, View, next_desired, roles_of
from twolane.deploy.controller.rollout import rolled
from twolane.deploy.controller.scaler import Scaler
from twolane.v1 import cluster_pb2, worker_pb2

HARDWARE = replace(hardware("h200"), start_s=4.0, flip_s=0.5)
ABLE = frozenset({"prefill", "decode"})
_NUMBERS = {"prefill": worker_pb2.ROLE_PREFILL, "decode": worker_pb2.ROLE_DECODE}


@dataclass
class Town:
    """A cluster that does at once what it is to do, and a router's counters."""

    minimum: int = 1
    budget: int = 6
    now: float = 100.0
    told: list[str] = field(default_factory=list)
    stuck: set[str] = field(default_factory=set)  # starts that never end
    stubborn: set[str] = field(default_factory=set)  # decode workers that take no other role
    rows: int = 0  # of each decode worker
    desired: Desired = field(
        default_factory=lambda: Desired(
            seats=(Seat(name="prefill-0", pool="prefill"), Seat(name="decode-0", pool="decode"))
        )
    )

    def __post_init__(self) -> None:
        self.inventory = replace(inventory(**{"": 8}), most_gpus=self.budget)
        self.traffic = cluster_pb2.Traffic()
        pools = {role: PoolLimits(minimum=self.minimum) for role in Role}
        self.limits = Limits(budget_gpus=self.budget, pools=pools, idle_s=60.0)
        self.begin()

    def begin(self) -> None:
        """A controller that knows nothing but what is desired."""
        self.scaler = Scaler(
            self.inventory,
            self.limits,
            HARDWARE,
            ObserverConfig(),
            lambda name, text: self.told.append(text),
        )

    def view(self) -> View:
        workers = {}
        for i, seat in enumerate(self.desired.seats):
            removal = self.desired.removal(seat.name)
            is_stuck = seat.name in self.stuck
            workers[seat.name] = Seen(
                phase=Phase.STARTING if is_stuck else Phase.RUNNING,
                epoch=0 if is_stuck else i + 1,
                is_heard=not is_stuck,
                roles=frozenset({"decode"})
                if seat.name in self.stubborn
                else roles_of(self.inventory, seat),
                able=ABLE,
                draining=removal is not None,
                ticket=1 if removal is not None else 0,
            )
        return View(workers=workers)

    def run(self, for_s: float, *, prompts: int = 0, answers: int = 0, per_s: float = 1.0) -> None:
        """So many requests a second, with so many tokens each."""
        for _ in range(int(for_s / 2)):
            self.now += 2.0
            n = round(2 * per_s) if prompts or answers else 0
            its = self.traffic
            its.requests += n
            its.prompt_tokens += n * prompts
            its.answers += n
            its.held += n
            its.answer_tokens += n * answers
            workers = [
                cluster_pb2.WorkerStatus(
                    worker=worker_pb2.WorkerAddress(worker_id=seat.name, epoch=i + 1),
                    roles=[_NUMBERS[role] for role in roles_of(self.inventory, seat)],
                    state="alive",
                    load=worker_pb2.LoadReport(
                        rows=self.rows * ("decode" in roles_of(self.inventory, seat))
                    ),
                )
                for i, seat in enumerate(self.desired.seats)
            ]
            self.scaler.note(self.now, workers, {"router-0": self.traffic})
            self.desired = self.scaler.step(self.now, self.desired, self.view())
            gone = [r.name for r in self.desired.removals]
            for name in gone:
                self.desired = self.desired.gone(name)
            self.desired = next_desired(self.desired, self.inventory, self.view())

    @property
    def reasons(self) -> list[str]:
        return [*self.scaler.status(self.now, self.desired).reasons]

    @property
    def sizes(self) -> tuple[int, int]:
        return tuple(  # type: ignore[return-value]
            sum(role in roles_of(self.inventory, seat) for seat in self.desired.seats)
            for role in ("prefill", "decode")
        )


def test_pools_follow_what_comes_within_the_budget() -> None:
    town = Town()
    town.run(60, prompts=1000, answers=100, per_s=10)
    assert town.sizes == (1, 1)
    town.run(60, prompts=4000, answers=50, per_s=20)
    assert town.sizes[0] >= 3
    assert sum(town.sizes) <= town.budget
    assert any(text.startswith("start a prefill worker: prefill has 1 of") for text in town.told)
    town.run(600, prompts=1000, answers=100, per_s=5)
    assert town.sizes == (1, 1)
    assert any(text.startswith("drain prefill") for text in town.told)


def test_budget_of_workers_without_gpus_is_told_in_seats() -> None:
    town = Town(budget=2)
    town.run(30, prompts=5000, answers=50, per_s=20)
    reasons = town.scaler.status(town.now, town.desired).reasons
    assert any("but the budget of 2 seats leaves 1" in reason for reason in reasons)


def test_worker_of_the_other_pool_flips_where_the_budget_is_used_up() -> None:
    town = Town(budget=4)
    town.run(60, prompts=2400, answers=200, per_s=16)
    town.desired = replace(
        town.desired,
        seats=(
            Seat(name="prefill-0", pool="prefill"),
            Seat(name="decode-0", pool="decode"),
            Seat(name="decode-1", pool="decode"),
            Seat(name="decode-2", pool="decode"),
        ),
    )
    town.run(20, prompts=5000, answers=20, per_s=16)
    assert town.sizes == (3, 1)
    assert {seat.name for seat in town.desired.seats} == {
        "prefill-0", "decode-0", "decode-1", "decode-2",
    }  # fmt: skip


def test_worker_that_has_flipped_does_not_go_back_at_once() -> None:
    town = Town(budget=4)
    settle_s = town.limits.settle_s
    town.desired = replace(
        town.desired,
        seats=(
            Seat(name="prefill-0", pool="prefill"),
            *(Seat(name=f"decode-{i}", pool="decode") for i in range(3)),
        ),
    )
    town.run(20, prompts=5000, answers=20, per_s=16)
    assert town.sizes == (3, 1)
    flipped_s = town.now
    while town.sizes == (3, 1):
        town.run(2, prompts=100, answers=2000, per_s=40)
        assert town.now < flipped_s + 2 * settle_s
    assert town.now >= flipped_s + settle_s - 20.0
    assert town.sizes[1] > 1


def test_flip_that_does_not_happen_is_given_up_and_another_worker_serves() -> None:
    town = Town(budget=4, stubborn={"decode-1"})
    town.desired = replace(
        town.desired,
        seats=(
            Seat(name="prefill-0", pool="prefill"),
            Seat(name="decode-0", pool="decode"),
            Seat(name="decode-1", pool="decode"),
        ),
    )
    town.run(10, prompts=2400, answers=20, per_s=4)
    town.desired = town.desired.flipped("decode-1", "prefill")
    town.run(20, prompts=2400, answers=20, per_s=4)
    seat = town.desired.seat("decode-1")
    assert seat is not None
    assert seat.pool == "prefill"
    town.run(20, prompts=2400, answers=20, per_s=4)
    assert any(text.startswith("give up the flip of decode-1") for text in town.told)
    seat = town.desired.seat("decode-1")
    assert seat is None or seat.pool == "decode"


def test_nobody_is_left_when_idle_and_the_first_request_starts_one_with_both_roles() -> None:
    town = Town(minimum=0)
    town.run(10, prompts=100, answers=10)
    town.run(200)
    assert town.sizes == (0, 0)
    assert town.scaler.status(town.now, town.desired).wakes
    town.traffic.waiting = 1
    town.scaler.note(town.now, [], {"router-0": town.traffic})
    assert town.scaler.is_due(town.now + 0.01), "it does not wait for its turn"
    town.run(2)
    assert [seat.roles for seat in town.desired.seats] == [("prefill", "decode")]


def test_workers_that_start_after_a_rollout_have_the_new_revision() -> None:
    town = Town(minimum=0, desired=Desired())
    town.run(2)
    its = Rollout(before="", after="/models/new")
    town.desired = rolled(replace(town.desired, rollout=its), town.inventory, town.view())
    assert town.desired.model_dir == its.after, "it is over at once"
    town.traffic.waiting = 1
    town.run(2)
    assert town.sizes == (1, 1), "one with both roles"
    town.traffic.waiting = 0
    town.run(60, prompts=5000, answers=50, per_s=20)
    assert sum(town.sizes) > 2
    assert {seat.model_dir for seat in town.desired.seats} == {"/models/new"}


def test_start_that_never_gets_ready_is_given_up_and_told() -> None:
    town = Town()
    town.run(20, prompts=1000, answers=100, per_s=10)
    town.stuck = {"prefill-1", "prefill-2", "prefill-3", "prefill-4", "prefill-5"}
    town.run(20, prompts=5000, answers=20, per_s=16)
    held = {seat.name for seat in town.desired.seats}
    assert held & town.stuck
    town.run(40, prompts=5000, answers=20, per_s=16)
    assert any(text.startswith("give up the start of prefill-") for text in town.told)
    assert len(town.desired.seats) <= town.budget


def test_workers_found_amid_their_start_do_not_say_how_long_starts_take() -> None:
    """They were ready 2 s after the controller's first look; starts take 4 s, and may take 12."""
    town = Town(stuck={"prefill-0", "decode-0"})
    town.run(2, prompts=1000, answers=100, per_s=10)
    town.stuck.clear()
    town.run(20, prompts=1000, answers=100, per_s=10)
    town.stuck = {f"prefill-{n}" for n in range(1, 6)}
    town.run(60, prompts=5000, answers=20, per_s=16)
    given_up = [text for text in town.told if text.startswith("give up the start of prefill-")]
    assert given_up
    assert all(text.endswith("where 4 s are usual") for text in given_up)


def test_paused_law_decides_nothing_and_a_dry_run_does_nothing() -> None:
    for mode in (Mode.PAUSED, Mode.DRY_RUN):
        town = Town()
        town.run(4, prompts=1000, answers=100)
        town.desired = replace(town.desired, mode=mode.value)
        town.run(60, prompts=5000, answers=50, per_s=20)
        assert town.sizes == (1, 1)
        assert not town.told
        status = town.scaler.status(town.now, town.desired)
        assert status.mode == mode.value
        assert bool(status.actions) is (mode is Mode.DRY_RUN)


def test_sizes_stay_while_a_rollout_is_under_way() -> None:
    town = Town()
    town.run(4, prompts=1000, answers=100)
    sizes = town.desired.sizes
    its = Rollout(before="", after="/models/new", extra=("prefill",))
    town.desired = replace(town.desired, rollout=its)
    town.run(30, prompts=5000, answers=50, per_s=20)
    assert town.desired.sizes == sizes
    (reason,) = town.scaler.status(town.now, town.desired).reasons
    assert reason == "a rollout is under way: sizes stay until its end"
    town.desired = replace(town.desired, rollout=replace(its, is_over=True))
    town.run(30, prompts=5000, answers=50, per_s=20)
    assert town.desired.sizes != sizes


def test_pinned_pool_stays_and_the_other_goes_on() -> None:
    town = Town()
    town.desired = town.desired.pinned("prefill", 1)
    town.run(60, prompts=5000, answers=50, per_s=20)
    assert town.sizes[0] == 1
    reasons = town.scaler.status(town.now, town.desired).reasons
    assert any("pinned by an operator" in reason for reason in reasons)


def test_worker_that_an_operator_touched_is_left_alone() -> None:
    town = Town(budget=4)
    town.run(20, prompts=2400, answers=200, per_s=16)
    town.desired = replace(
        town.desired,
        seats=(
            Seat(name="prefill-0", pool="prefill"),
            Seat(name="decode-0", pool="decode"),
            Seat(name="decode-1", pool="decode"),
        ),
    )
    town.budget = 3
    town.inventory = replace(town.inventory, most_gpus=3)
    town.limits = replace(town.limits, budget_gpus=3)
    town.begin()
    for name in ("decode-0", "decode-1"):
        town.scaler.touched(town.now, name)
    town.run(40, prompts=5000, answers=20, per_s=16)
    assert town.sizes == (1, 2)
    town.run(400, prompts=5000, answers=20, per_s=16)
    assert town.sizes == (2, 1)


def test_controller_that_takes_over_goes_on_with_the_sizes_there_are() -> None:
    town = Town()
    town.run(60, prompts=4000, answers=50, per_s=20)
    before, n_told = town.sizes, len(town.told)
    assert before == (4, 1)
    town.begin()
    town.traffic.requests += 10**6  # while nobody looked
    town.traffic.prompt_tokens += 10**9
    town.run(10, prompts=4000, answers=50, per_s=20)
    assert town.sizes == before
    assert town.told[n_told:] == [], "nor does it drain one and start another"


def test_controller_that_begins_keeps_what_it_finds_as_it_knows_no_earlier_need() -> None:
    town = Town()
    town.run(60, prompts=4000, answers=50, per_s=20)
    before = town.sizes
    assert before[0] > 2
    town.begin()
    town.run(town.limits.kept_s - 10, prompts=1000, answers=100, per_s=5)
    assert town.sizes == before
    town.run(120, prompts=1000, answers=100, per_s=5)
    assert town.sizes == (1, 1)


def test_controller_flips_none_at_its_first_look_which_shows_no_rates() -> None:
    town = Town(budget=5)
    town.run(60, prompts=4000, answers=50, per_s=20)
    assert town.sizes == (4, 1)
    town.begin()
    town.rows = 1_000
    town.run(2, prompts=4000, answers=50, per_s=20)
    assert any("decode: 1 worker, 4 wanted" in text for text in town.reasons), town.reasons
    assert town.sizes == (4, 1), "prefill is busy, which only two looks show"
    town.run(2, prompts=4000, answers=50, per_s=20)
    assert town.sizes[1] > 1, "rows that wait now are helped, whatever came before"


@pytest.mark.parametrize("n", [0, 5])
def test_reports_count_a_router_that_began_anew_from_zero(n: int) -> None:
    town = Town()
    town.run(60, prompts=1000, answers=100, per_s=10)
    town.traffic = cluster_pb2.Traffic(requests=n)
    town.run(60, prompts=1000, answers=100, per_s=10)
    assert town.sizes == (1, 1)
    assert town.scaler.status(town.now, town.desired).attainment == 1.0


def test_prompts_that_turn_out_to_be_cached_are_taken_off_later_ones() -> None:
    """They wait in the queue while nothing else comes, and their workers have them."""
    town = Town()
    town.run(20, prompts=1000, answers=10, per_s=10)
    before = town.scaler._reports.signals.prompt_tokens
    town.traffic.cached_tokens += 50_000
    town.run(2)
    assert town.scaler._reports.signals.prompt_tokens == before
    town.run(10, prompts=1000, answers=10, per_s=10)
    assert town.scaler._reports.signals.prompt_tokens == before + 50_000
