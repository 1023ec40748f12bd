from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.deploy.controller.inventories import inventory, names, running, seated
from twolane.deploy.controller import acts
from twolane.deploy.controller.acts import Decided, cordon, drain_host, flip, kill, outcome, scale
from twolane.deploy.controller.desired import Change, Desired, Removal, Seat
from twolane.deploy.controller.reconcile import View, next_desired, target
from twolane.deploy.controller.seats import Inventory
from twolane.deploy.controller.sizing import begun
from twolane.deploy.errors import RefusedError

TWO = inventory(a=2, b=2)
ONE_EACH = seated("prefill-0@a", "decode-0@b")


def told(decided: Decided) -> list[str]:
    return [f"{its.subject}: {its.before} -> {its.after}" for its in decided.changes]


def test_pools_are_scaled_together_and_the_changes_say_what_will_be_done() -> None:
    decided = scale(ONE_EACH, TWO, running(ONE_EACH), {"decode": 2, "prefill": 2})
    assert told(decided) == [
        "pool decode: 1 -> 2, pinned",
        "pool prefill: 1 -> 2, pinned",
        "prefill-1:  -> starts on b",
        "decode-1:  -> starts on a",
        "in the end: 2 of 4 seats -> 4 of 4 seats",
    ]
    end, missing = outcome(decided.desired, TWO, running(ONE_EACH))
    assert not missing
    assert names(end) == ["prefill-0@a", "decode-0@b", "prefill-1@b", "decode-1@a"]


def test_what_does_not_fit_is_refused_as_a_whole_with_the_budget() -> None:
    with pytest.raises(RefusedError) as refused:
        scale(ONE_EACH, TWO, running(ONE_EACH), {"prefill": 2, "decode": 3})
    more = "`twolane up --seats`, or a topology's hosts, set how many there are"
    assert str(refused.value) == f"no room for 1 of decode: 4 of 4 seats are taken then; {more}"


def test_one_pool_gives_the_seats_that_another_gets() -> None:
    four = seated("prefill-0@a", "prefill-1@b", "decode-0@a", "decode-1@b")
    decided = scale(four, TWO, running(four), {"prefill": 1, "decode": 3})
    end, missing = outcome(decided.desired, TWO, running(four))
    assert not missing
    assert len(end.staying("decode")) == 3
    assert "prefill-1: runs on b -> drains, is stopped on its ticket" in told(decided)


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ({"decode": 0}, "nobody is left to decode then: `twolane down` ends a cluster"),
        ({"encode": 2}, "there is no pool encode; there are prefill, decode"),
    ],
)
def test_scale_refuses(sizes: dict[str, int], why: str) -> None:
    with pytest.raises(RefusedError) as refused:
        scale(ONE_EACH, TWO, running(ONE_EACH), sizes)
    assert str(refused.value) == why


def test_cordoned_and_silent_hosts_are_no_room() -> None:
    decided = scale(
        ONE_EACH, TWO, replace(running(ONE_EACH), closed=frozenset({"a"})), {"decode": 2}
    )
    assert "decode-1:  -> starts on b" in told(decided)
    closed = cordon(ONE_EACH, TWO, "b").desired
    with pytest.raises(RefusedError, match=r"no room for 1 of decode: .*; b is cordoned"):
        scale(closed, TWO, running(closed), {"decode": 3})


def test_what_does_not_fit_although_seats_are_free_says_why() -> None:
    closed = cordon(ONE_EACH, TWO, "b").desired
    silent = replace(running(ONE_EACH), closed=frozenset({"a"}), silent=frozenset({"a"}))
    with pytest.raises(RefusedError) as refused:
        scale(closed, TWO, silent, {"decode": 2})
    why = "2 of 4 seats are taken then; b is cordoned; a does not answer"
    assert str(refused.value) == f"no room for 1 of decode: {why}"
    little = replace(TWO, most_gpus=2)
    with pytest.raises(RefusedError, match="2 of 4 seats are taken then; the budget is 2"):
        scale(ONE_EACH, little, running(ONE_EACH), {"decode": 2})


def _at_most_ten_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = iter(range(10))

    def counted(desired: Desired, rooms: Inventory, view: View) -> Desired:
        assert next(rounds, None) is not None, "it goes round and round"
        return next_desired(desired, rooms, view)

    monkeypatch.setattr(acts, "next_desired", counted)


STAYS = "stays until b answers or is fenced"
FOUR = seated("prefill-0@a", "decode-0@a", "decode-1@b")
ROOMS = inventory(decode=2, a=3, b=1)


@pytest.mark.parametrize(
    ("decide", "said", "n_decode"),
    [
        (
            lambda view: drain_host(FOUR, ROOMS, view, "b"),
            [
                "host b: open -> cordoned",
                f"decode-1: runs on b -> {STAYS}",
                "decode-2:  -> starts on a",
                "in the end: 3 of 4 seats -> 4 of 4 seats",
            ],
            2,
        ),
        (
            lambda view: scale(FOUR, ROOMS, view, {"decode": 1}),
            ["pool decode: 2 -> 1, pinned", f"decode-1: runs on b -> {STAYS}"],
            1,
        ),
        (
            lambda view: scale(
                kill(FOUR, ROOMS, view, "decode-1").desired, ROOMS, view, {"decode": 2}
            ),
            [
                "pool decode: 1, pinned -> 2, pinned",
                f"decode-1: drains on b -> {STAYS}",
                "decode-2:  -> starts on a",
                "in the end: 3 of 4 seats -> 4 of 4 seats",
            ],
            2,
        ),
    ],
    ids=["a drained host", "a smaller pool", "a pool after a kill without proof"],
)
def test_worker_on_a_silent_host_keeps_its_seat_and_the_changes_say_so(
    decide: Callable[[View], Decided],
    said: list[str],
    n_decode: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    b = frozenset({"b"})
    view = replace(running(FOUR), closed=b, silent=b)
    _at_most_ten_rounds(monkeypatch)
    decided = decide(view)
    assert told(decided) == said
    end, missing = acts.outcome(decided.desired, ROOMS, view)
    assert not missing
    assert end.seat("decode-1") is not None
    assert len(end.staying("decode")) == n_decode


def test_gpus_are_the_budget_where_workers_have_them() -> None:
    rooms = inventory(gpus=2, a=4, b=3)
    now = seated("prefill-0@a:0,1", "decode-0@b:0,1")
    decided = scale(now, rooms, running(now), {"decode": 2})
    assert told(decided)[-1] == "in the end: 4 of 7 GPUs -> 6 of 7 GPUs"
    with pytest.raises(RefusedError, match="no room for 1 of decode with 2 GPUs each: 6 of 7 GPUs"):
        scale(now, rooms, running(now), {"decode": 3})


def test_auto_lifts_the_pin() -> None:
    pinned = scale(ONE_EACH, TWO, running(ONE_EACH), {"decode": 2}, for_s=60).desired
    assert pinned.pin("decode") is not None
    lifted = scale(pinned, TWO, running(ONE_EACH), {"decode": None})
    assert lifted.desired.pins == ()
    assert told(lifted) == ["pool decode: 2, pinned for 60 s -> 1"]


def test_a_killed_worker_stays_away_until_its_pool_is_scaled() -> None:
    now = seated("prefill-0@a", "decode-0@b", "decode-1@a")
    two = inventory(decode=2, a=2, b=2)
    decided = kill(now, two, running(now, {"decode-1": 3}), "decode-1")
    assert told(decided) == [
        "decode-1: runs on a -> is killed, not started again; its 3 requests resume elsewhere",
        "pool decode: 2 -> 1, pinned",
    ]
    end, missing = outcome(decided.desired, two, running(now))
    assert (names(end), missing) == (["prefill-0@a", "decode-0@b"], {})
    again = kill(decided.desired, two, running(now), "decode-1").desired
    decode = two.pool("decode")
    assert decode is not None
    assert target(again, decode) == 1
    with pytest.raises(RefusedError, match="there is no worker decode-7; there are prefill-0"):
        kill(now, two, running(now), "decode-7")


@pytest.mark.parametrize("act", [kill, flip])
def test_worker_of_a_cluster_at_zero_is_refused_in_words(
    act: Callable[[Desired, Inventory, View, str], Decided],
) -> None:
    with pytest.raises(RefusedError) as refused:
        act(Desired(), TWO, View(), "prefill-0")
    why = "there is no worker prefill-0; the cluster has no workers now"
    assert str(refused.value) == why


WHOLE = Seat(name="decode-0", pool="decode", host="a", roles=("prefill", "decode"))


def sized(*seats: Seat) -> Desired:
    """As the law has it, by the workers there are."""
    return begun(Desired(seats=seats), TWO)


@pytest.mark.parametrize("n", [None, 1])
def test_pool_of_a_cluster_that_sizes_itself_comes_back_after_a_kill(n: int | None) -> None:
    now = sized(*ONE_EACH.seats)
    killed = kill(now, TWO, running(now), "decode-0").desired.gone("decode-0").sized()
    decided = scale(killed, TWO, running(killed), {"decode": n})
    assert told(decided)[:2] == [
        f"pool decode: 0, pinned -> 1{', pinned' * (n is not None)}",
        "decode-0:  -> starts on a",
    ]
    if n is None:
        assert len(decided.desired.staying("decode")) == 1, "before the law counts it"
        assert decided.desired.sized() == decided.desired


def test_pool_that_a_kill_has_pinned_at_zero_is_named() -> None:
    for now in (ONE_EACH, sized(*ONE_EACH.seats)):
        killed = kill(now, TWO, running(now), "prefill-0").desired.gone("prefill-0")
        with pytest.raises(RefusedError) as refused:
            scale(killed, TWO, running(killed), {"decode": 3})
        assert str(refused.value) == (
            "nobody is left to prefill then, as prefill is pinned at 0: "
            "`twolane scale decode=3 prefill=auto`"
        )


def test_pool_is_pinned_beside_a_worker_with_both_roles() -> None:
    now = sized(WHOLE)
    decided = scale(now, TWO, running(now), {"decode": 3})
    end, _ = outcome(decided.desired, TWO, running(now))
    assert [seat.name for seat in end.seats] == ["decode-0", "decode-1", "decode-2"]
    with pytest.raises(RefusedError, match="no room for 1 of decode: 4 of 4 seats are taken"):
        scale(now, TWO, running(now), {"decode": 4})


def test_pools_of_a_cluster_at_zero_are_scaled_together() -> None:
    now = sized()
    assert scale(now, TWO, View(), {"decode": None}).desired.seats == ()
    decided = scale(now, TWO, View(), {"decode": 2})
    assert sum("starts" in each for each in told(decided)) == 3
    with pytest.raises(RefusedError, match="nobody is left to decode then: `twolane down`"):
        scale(now, TWO, View(), {"decode": 0})
    with pytest.raises(RefusedError, match="the budget is 2"):
        scale(now, replace(TWO, most_gpus=2), View(), {"decode": 2})


def test_a_host_that_is_drained_keeps_nobody_and_others_take_over() -> None:
    rooms = inventory(prefill=1, decode=2, a=3, b=2)
    now = seated("prefill-0@a", "decode-0@b", "decode-1@a")
    decided = drain_host(now, rooms, running(now, {"decode-0": 1}), "b")
    assert told(decided) == [
        "host b: open -> cordoned",
        "decode-0: runs on b -> drains, is stopped on its ticket; it has 1 request",
        "decode-2:  -> starts on a",
    ]
    end, missing = outcome(decided.desired, rooms, running(now))
    assert (names(end), missing) == (["prefill-0@a", "decode-1@a", "decode-2@a"], {})


def test_a_router_of_a_host_that_is_drained_is_marked_as_what_would_end_with_it() -> None:
    rooms = replace(
        inventory(prefill=1, decode=1, a=3, b=2), routers=(("router-0", "a"), ("router-1", "b"))
    )
    decided = drain_host(ONE_EACH, rooms, running(ONE_EACH), "b")
    assert [its.subject for its in decided.changes if its.stays] == ["router-1"]
    assert "decode-0" in {its.subject for its in decided.changes}


def test_a_host_whose_workers_go_nowhere_says_so() -> None:
    decided = drain_host(ONE_EACH, inventory(a=1, b=1), running(ONE_EACH), "b", hand_over=True)
    assert told(decided)[-2:] == [
        "pool decode:  -> is 1 short until there is room again",
        "decode:  -> nobody is left: requests wait, then fail",
    ]


@pytest.mark.parametrize(
    ("host", "rooms", "why"),
    [
        ("c", TWO, "there is no host c; there are a, b"),
        ("c", inventory(), "this cluster has no hosts: it is on one machine"),
    ],
)
def test_hosts_that_are_not_there_are_refused(host: str, rooms: object, why: str) -> None:
    with pytest.raises(RefusedError) as refused:
        cordon(ONE_EACH, rooms, host)  # type: ignore[arg-type]
    assert str(refused.value) == why


def test_uncordon_opens_a_host_again() -> None:
    closed = cordon(ONE_EACH, TWO, "b")
    again = cordon(closed.desired, TWO, "b")
    assert (again.desired, again.changes) == (closed.desired, ())
    assert cordon(closed.desired, TWO, "b", undo=True).desired == ONE_EACH


def test_a_kill_is_not_made_a_drain_again() -> None:
    killed = ONE_EACH.removed(Removal(name="decode-0", kill=True))
    assert killed.removed(Removal(name="decode-0", hand_over=True)).removals[0].kill


def test_an_answer_is_remembered_by_its_request_id() -> None:
    desired = Desired()
    for i in range(100):
        desired = desired.answered(f"r{i}", [Change(subject=f"{i}", before="", after="")])
    answer = desired.answer("r99")
    assert answer is not None
    assert answer.changes == (Change(subject="99", before="", after=""),)
    assert desired.answer("r0") is None
    assert desired.answered("", []).answer("") is None
    assert outcome(desired, inventory(prefill=0, decode=0), View())[0] == desired
