"""Placement against every way to seat the workers, on small inventories."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from twolane.deploy.errors import StartError
from twolane.deploy.spec.placement import AssignedGpus, Host, Need, place

P, D, BOTH = ("prefill",), ("decode",), ("prefill", "decode")


def hosts(*sizes: int) -> list[Host]:
    return [Host(f"h{i}", tuple(f"{i}.{gpu}" for gpu in range(n))) for i, n in enumerate(sizes)]


def needs(
    prefill: tuple[int, int] = (0, 1), decode: tuple[int, int] = (0, 1),
    both: tuple[int, int] = (0, 1),
) -> list[Need]:  # fmt: skip
    """(workers, GPUs of each) by role."""
    kinds = [("p", P, *prefill), ("d", D, *decode), ("b", BOTH, *both)]
    return [Need(name, roles, n, gpus) for name, roles, n, gpus in kinds if n]


def at_one_host(seats: list[list[AssignedGpus]], its: Sequence[Need]) -> int:
    """The share of pages that can stay on their host, times the workers of both sides."""
    where = {need.roles: Counter(seat.host for seat in all_) for need, all_ in zip(its, seats)}  # noqa: B905
    prefill, decode = where.get(P, Counter()), where.get(D, Counter())
    n_prefill, n_decode = prefill.total(), decode.total()
    return sum(min(prefill[h] * n_decode, decode[h] * n_prefill) for h in {*prefill, *decode})


def every_way(its: Sequence[Need], there: Sequence[Host]) -> Iterator[list[list[AssignedGpus]]]:
    """Every choice of a host for each worker under which all have room, GPUs aside."""
    n_workers = sum(need.workers for need in its)
    for chosen in itertools.product(there, repeat=n_workers):
        left = iter(chosen)
        seats = [[AssignedGpus(next(left).name, ()) for _ in range(need.workers)] for need in its]
        used = Counter[str]()
        for need, all_ in zip(its, seats, strict=True):
            for seat in all_:
                used[seat.host] += need.gpus
        if all(used[host.name] <= len(host.gpus) for host in there):
            yield seats


SIZES = [(1,), (2,), (4,), (2, 2), (1, 3), (4, 2), (2, 4), (3, 3), (1, 2, 3), (2, 2, 2)]
CLUSTERS = [
    needs(prefill=(p, p_gpus), decode=(d, d_gpus), both=(b, b_gpus))
    for p, d, b in [(0, 0, 1), (0, 0, 3), (1, 1, 0), (2, 1, 0), (1, 2, 0), (2, 2, 0), (1, 1, 1)]
    for p_gpus in ((1, 2) if p else (1,))
    for d_gpus in ((1, 2, 3) if d else (1,))
    for b_gpus in ((1, 2) if b else (1,))
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_no_other_seating_keeps_more_pages_on_a_host_or_takes_fewer_hosts(
    sizes: tuple[int, ...],
) -> None:
    there = hosts(*sizes)
    n_seated = 0
    for its in CLUSTERS:
        scores = [
            (at_one_host(way, its), -len({seat.host for all_ in way for seat in all_}))
            for way in every_way(its, there)
        ]
        if not scores:
            with pytest.raises(StartError, match=r"need.* GPU"):
                place(its, there)
            continue
        seats = place(its, there)
        n_seated += 1
        used = {seat.host for all_ in seats for seat in all_}
        assert (at_one_host(seats, its), -len(used)) == max(scores), its
        given = [gpu for all_ in seats for seat in all_ for gpu in seat.gpus]
        assert len(given) == len({*given}) == sum(need.workers * need.gpus for need in its)
        for need, all_ in zip(its, seats, strict=True):
            for seat in all_:
                assert len(seat.gpus) == need.gpus
                (host,) = (host for host in there if host.name == seat.host)
                assert {*seat.gpus} <= {*host.gpus}
    assert n_seated


def test_pairs_are_seated_together_and_side_by_side() -> None:
    prefill, decode = place(needs(prefill=(2, 1), decode=(2, 1)), hosts(2, 2))
    assert [seat.host for seat in prefill] == [seat.host for seat in decode] == ["h0", "h1"]
    prefill, decode = place(needs(prefill=(2, 1), decode=(2, 1)), hosts(4))
    assert [(p.gpus, d.gpus) for p, d in zip(prefill, decode, strict=True)] == [
        (("0.0",), ("0.1",)), (("0.2",), ("0.3",))
    ]  # fmt: skip


def test_groups_lie_side_by_side_before_single_workers() -> None:
    ((prefill,), (decode,)) = place(needs(prefill=(1, 1), decode=(1, 4)), hosts(8))
    assert decode.gpus == ("0.0", "0.1", "0.2", "0.3")
    assert prefill.gpus == ("0.4",)


def test_equal_inventories_and_topologies_are_placed_alike() -> None:
    its = needs(prefill=(3, 1), decode=(2, 2), both=(1, 1))
    assert place(its, hosts(4, 8)) == place(its, hosts(4, 8))


@pytest.mark.parametrize("sizes", [(1,), (2,), (3,), (1, 2)], ids=str)
def test_shared_gpus_go_to_as_few_workers_each_as_can_be(sizes: tuple[int, ...]) -> None:
    for n, gpus in itertools.product(range(1, 6), range(1, max(sizes) + 1)):
        (seats,) = place(needs(both=(n, gpus)), hosts(*sizes), share=True)
        shared = Counter(gpu for seat in seats for gpu in seat.gpus)
        assert all(len({*seat.gpus}) == gpus for seat in seats)
        most = max(shared.values())
        if most > 1:  # one fewer each, and somebody would stand
            fewer = hosts(*(size * (most - 1) for size in sizes if size >= gpus))
            with pytest.raises(StartError, match="need"):
                place(needs(both=(n, gpus)), fewer)


@pytest.mark.parametrize(
    ("its", "sizes", "message"),
    [
        (needs(both=(1, 1)), (), "needs 1 GPU of one host; there are none"),
        (needs(both=(1, 4)), (2, 2), "needs 4 GPUs of one host; there are 2 at h0, 2 at h1"),
        (needs(prefill=(2, 1), decode=(1, 2)), (3,), r"\(p: 2 of 1, d: 1 of 2\); 3 can be seen"),
        (needs(both=(2, 2)), (3, 1), "4 GPUs in groups that no split of the hosts has room for"),
    ],
)
def test_what_does_not_fit_says_what_is_needed_and_what_is_there(
    its: list[Need], sizes: tuple[int, ...], message: str
) -> None:
    with pytest.raises(StartError, match=message):
        place(its, hosts(*sizes))


def test_a_rack_is_placed_at_once() -> None:
    its = needs(prefill=(16, 2), decode=(24, 4))
    prefill, decode = place(its, hosts(*[8] * 16))
    assert (len(prefill), len(decode)) == (16, 24)
    assert at_one_host([prefill, decode], its) == 8 * 16  # on 8 hosts 2 + 1, on 8 none but decode
