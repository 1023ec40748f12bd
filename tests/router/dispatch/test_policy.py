"""The policy as tables: workers, need, the pair that must come out."""

import json
from dataclasses import replace
from typing import Any

import pytest

from twolane.router.dispatch.policy import Placement, place, place_decode, place_pair
from twolane.router.members.worker_view import Need, WorkerView


def worker(name: str, **fields: Any) -> WorkerView:
    defaults = {
        "epoch": sum(name.encode()),
        "worker_id": name,
        "fingerprint": "f",
        "prefills": name[0] in "pb",
        "decodes": name[0] in "db",
        "n_pages": 100,
        "page_tokens": 16,
        "max_rows": 8,
        "max_backlog_tokens": 1000,
    }
    return WorkerView(**{**defaults, **fields})


def epoch(name: str) -> int:
    return sum(name.encode())


SMALL: dict[str, Any] = {"n_tokens": 20, "growth_tokens": 12}

TABLE = [
    ("a lone pair", [worker("p0"), worker("d0")], SMALL, ("p0", "d0")),
    ("nobody decodes", [worker("p0")], SMALL, None),
    ("nobody prefills", [worker("d0")], SMALL, None),
    ("nobody", [], SMALL, None),
    (
        "least backlog",
        [worker("p0", backlog_tokens=50), worker("p1", backlog_tokens=49), worker("d0")],
        SMALL,
        ("p1", "d0"),
    ),
    (
        "of equals the one given work longest ago",
        [worker("p0", last_given=9), worker("p1", last_given=4), worker("d0")],
        SMALL,
        ("p1", "d0"),
    ),
    (
        "a full backlog waits",
        [worker("p0", backlog_tokens=1000), worker("d0")],
        SMALL,
        None,
    ),
    (
        "one that has enough of ours waits, however long the others' backlog is",
        [worker("p0", has_enough=True), worker("p1", backlog_tokens=900), worker("d0")],
        SMALL,
        ("p1", "d0"),
    ),
    (
        "most free pages, in share of the pool",
        [
            worker("p0"),
            worker("d0", occupied_pages=50),
            worker("d1", n_pages=1000, occupied_pages=400),
        ],
        SMALL,
        ("p0", "d1"),
    ),
    (
        "fewest rows among equals",
        [worker("p0"), worker("d0", rows=3), worker("d1", rows=2)],
        SMALL,
        ("p0", "d1"),
    ),
    (
        "rows at their most",
        [worker("p0"), worker("d0", rows=8), worker("d1", rows=7, occupied_pages=90)],
        SMALL,
        ("p0", "d1"),
    ),
    (
        "growth counts",
        [worker("p0"), worker("d0", occupied_pages=99)],
        {"n_tokens": 16, "growth_tokens": 1},
        None,
    ),
    (
        "the last page can be used",
        [worker("p0"), worker("d0", occupied_pages=99)],
        {"n_tokens": 15, "growth_tokens": 1},
        ("p0", "d0"),
    ),
    (
        "a prompt larger than the prefill pool",
        [worker("p0", n_pages=1), worker("d0")],
        SMALL,
        None,
    ),
    (
        "fingerprints never mix",
        [worker("p0", fingerprint="a"), worker("d0", fingerprint="b")],
        SMALL,
        None,
    ),
    (
        "the fingerprint that has both",
        [
            worker("p0", fingerprint="a"),
            worker("p1", fingerprint="b"),
            worker("d0", fingerprint="b"),
        ],
        SMALL,
        ("p1", "d0"),
    ),
    (
        "a cached prefix counts as computed",
        [worker("p0"), worker("p1", backlog_tokens=100), worker("d0")],
        {"n_tokens": 500, "growth_tokens": 1, "cached_tokens": {epoch("p1"): 128}},
        ("p1", "d0"),
    ),
    (
        "but not against a longer queue",
        [worker("p0"), worker("p1", backlog_tokens=200), worker("d0")],
        {"n_tokens": 500, "growth_tokens": 1, "cached_tokens": {epoch("p1"): 128}},
        ("p0", "d0"),
    ),
    ("colocated: one worker", [worker("b0", rows=1), worker("b1")], SMALL, ("b1", "b1")),
    (
        "colocated: backlog before pages",
        [worker("b0", backlog_tokens=10), worker("b1", occupied_pages=50)],
        SMALL,
        ("b1", "b1"),
    ),
    (
        "colocated: no room on either",
        [worker("b0", rows=8), worker("b1", backlog_tokens=1000)],
        SMALL,
        None,
    ),
    (
        "held to short work: beside an idle prefill worker, none",
        [worker("p0"), worker("b0", beside_tokens=100)],
        SMALL,
        ("p0", "b0"),
    ),
    (
        "held to short work: a short prompt where the prefill worker is behind, whole",
        [worker("p0", backlog_tokens=50), worker("b0", beside_tokens=100), worker("d0")],
        SMALL,
        ("b0", "b0"),
    ),
    (
        "held to short work: no long prompt",
        [worker("p0", backlog_tokens=900), worker("b0", beside_tokens=100)],
        {"n_tokens": 101, "growth_tokens": 1},
        ("p0", "b0"),
    ),
    (
        "held to short work: a long prompt of which little is left to compute",
        [worker("p0"), worker("b0", beside_tokens=100)],
        {"n_tokens": 500, "growth_tokens": 1, "cached_tokens": {epoch("b0"): 448}},
        ("b0", "b0"),
    ),
    (
        "held to short work: no prompt behind others that are not computed yet",
        [worker("p0", backlog_tokens=900), worker("b0", beside_tokens=100, backlog_tokens=81)],
        SMALL,
        ("p0", "b0"),
    ),
    (
        "held to short work: of two the one with less to compute, then with more room",
        [
            worker("p0", backlog_tokens=900),
            worker("b0", beside_tokens=100, occupied_pages=1),
            worker("b1", beside_tokens=100),
            worker("b2", beside_tokens=100, backlog_tokens=1),
        ],
        SMALL,
        ("b1", "b1"),
    ),
    (
        "held to short work: any prompt where nobody else prefills",
        [worker("b0", beside_tokens=10), worker("d0")],
        SMALL,
        ("b0", "b0"),
    ),
    (
        "mixed: a pure prefill worker before one that decodes too",
        [worker("b0"), worker("p0"), worker("d0", occupied_pages=1)],
        SMALL,
        ("p0", "b0"),
    ),
    (
        "avoided ones only if there is no other",
        [worker("p0"), worker("d0"), worker("d1", rows=7)],
        {**SMALL, "avoid": frozenset({epoch("d0")})},
        ("p0", "d1"),
    ),
    (
        "avoided, but alone",
        [worker("p0"), worker("d0")],
        {**SMALL, "avoid": frozenset({epoch("d0"), epoch("p0")})},
        ("p0", "d0"),
    ),
    (
        "an avoided one is not taken because the other is full",
        [worker("p0"), worker("d0"), worker("d1", rows=8)],
        {**SMALL, "avoid": frozenset({epoch("d0")})},
        None,
    ),
]


@pytest.mark.parametrize(
    ("workers", "need", "pair"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_place(workers: Any, need: Any, pair: Any) -> None:
    for order in (workers, workers[::-1]):
        placement = place(Need(**need), order)
        found = placement and (placement.prefill.worker_id, placement.decode.worker_id)
        assert found == pair


FAR_IS_AS_GOOD = [
    ("both are empty", {}, {}, "d-near"),
    ("this row's own pages cost nothing", {"occupied_pages": 2}, {}, "d-near"),
    ("more rows than that do", {"occupied_pages": 3}, {}, "d-far"),
    ("an eighth more is as good", {"occupied_pages": 47}, {"occupied_pages": 40}, "d-near"),
    ("more than an eighth is not", {"occupied_pages": 48}, {"occupied_pages": 40}, "d-far"),
    ("no row is free there", {"rows": 8}, {}, "d-far"),
    ("no page is free there", {"occupied_pages": 100}, {"occupied_pages": 90}, "d-far"),
    ("the far one has no room", {"occupied_pages": 60}, {"occupied_pages": 99}, "d-near"),
]


@pytest.mark.parametrize(
    ("near", "far", "chosen"),
    [row[1:] for row in FAR_IS_AS_GOOD],
    ids=[r[0] for r in FAR_IS_AS_GOOD],
)
def test_a_decode_worker_on_the_prefill_workers_host_is_taken_if_that_costs_nothing(
    near: Any, far: Any, chosen: str
) -> None:
    workers = [
        worker("p0", host="A"),
        worker("d-far", host="B", **far),
        worker("d-near", host="A", **near),
    ]
    need = Need(**SMALL)
    placement = place(need, workers)
    assert placement is not None
    assert placement.decode.worker_id == chosen
    giver = workers[0].giver
    held = place_decode(need, workers, giver, "A")
    assert held is not None
    assert held.worker_id == chosen


def test_hosts_that_nobody_has_told_are_not_near_each_other() -> None:
    workers = [worker("p0"), worker("d0", occupied_pages=1), worker("d1")]
    placement = place(Need(**SMALL), workers)
    assert placement is not None
    assert placement.decode.worker_id == "d1"


def test_decode_worker_for_held_pages_is_never_an_avoided_one() -> None:
    need = Need(**SMALL, avoid=frozenset({epoch("d0")}))
    giver = worker("p0").giver
    assert place_decode(need, [worker("d0"), worker("p0")], giver) is None
    assert place_decode(need, [worker("d0"), worker("d1")], giver) == worker("d1")
    assert place_decode(need, [worker("d1", fingerprint="g")], giver) is None


def laid_out(name: str, **changed: Any) -> WorkerView:
    facts = {"dtype": "bfloat16", "head_dim": 8, "kv_heads": 1, "layers": 1, "page_tokens": 16}
    made = changed.pop("makes_dtypes", ())
    layout = json.dumps({**facts, **changed})
    return worker(name, layout=layout, makes_dtypes=made)


def test_pair_whose_pages_do_not_fit_is_never_made() -> None:
    need = Need(**SMALL)
    fp8, wide = {"dtype": "float8_e4m3fn"}, {"page_tokens": 64}
    plain = laid_out("p0")
    assert place(need, [plain, laid_out("d0", **fp8), laid_out("d1", **wide)]) is None
    assert place_decode(need, [laid_out("d0", **wide)], plain.giver) is None
    able = laid_out("p1", makes_dtypes=("bfloat16",))
    d0, d1 = laid_out("d0", **fp8), laid_out("d1", **wide)
    assert place(need, [plain, able, d0, d1]) == Placement(able, d1)
    assert place_decode(need, [d0, d1], able.giver) == d1
    quantising = laid_out("p2", makes_dtypes=("bfloat16", "float8_e4m3fn"))
    assert place(need, [plain, quantising, d0]) == Placement(quantising, d0)


def test_prefill_worker_that_no_decode_worker_has_room_for_is_passed_over() -> None:
    first, second = laid_out("p0"), laid_out("p1", page_tokens=64)
    full, free = laid_out("d0"), laid_out("d1", page_tokens=64)
    full = replace(full, occupied_pages=100)
    assert place(Need(**SMALL), [first, second, full, free]) == Placement(second, free)


@pytest.mark.parametrize(
    ("prefill", "decode", "fits"),
    [
        (worker("p0"), worker("d0"), True),
        (worker("b0"), worker("b1"), True),
        (worker("p0"), worker("d0", fingerprint="g"), False),
        (worker("p0"), worker("d0", rows=8), False),
        (worker("p0", backlog_tokens=1000), worker("d0"), False),
        (worker("d0"), worker("p0"), False),
        (None, worker("d0"), False),
    ],
)
def test_a_pair_that_is_named_is_taken_or_nobody_is(
    prefill: WorkerView | None, decode: WorkerView | None, fits: bool
) -> None:
    found = place_pair(Need(**SMALL), prefill, decode)
    assert found == (Placement(prefill, decode) if fits and prefill and decode else None)
