"""What is told of a live flip follows from looks, and from requests whose ledgers name workers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.scaling.flip import describe, problems_of
from benchmarks.scaling.flip_run import (
    Flip,
    FlipConfig,
    FlipLateError,
    FlipRun,
    Request,
    flip_worker,
)
from twolane.errors import PreconditionError
from twolane.values import Ledger


def request(sent_s: float, times_s: list[float], by: str, *, attempts: int = 1) -> Request:
    prefill, decode = by.split()
    ledger = Ledger(attempts=attempts, prefill_worker=prefill, decode_worker=decode)
    return Request(sent_s, times_s, ledger)


def made(*more: Request) -> FlipRun:
    """`w` prefills until 10, decodes until 20, then prefills again."""
    return FlipRun(
        "w",
        [
            request(9.5, [10.2, 10.3], "w d"),
            request(10.4, [10.6, 11.0, 11.1], "p w"),
            request(19.0, [19.1, 20.0, 21.5], "p w"),
            request(20.5, [20.75, 20.8], "w d"),
            *more,
        ],
        [Flip("decode", 10.0, 10.1, 10.25), Flip("prefill", 20.0, 20.1, 20.4)],
        ended_s=30.0,
    )


def test_a_flip_is_followed_by_requests_that_came_after_the_one_before_it() -> None:
    again = request(10.1, [10.3, 10.35], "p w", attempts=2)
    figures = describe(made(again))
    first, second = figures["flips"]
    assert (first["announced_s"], first["first_token_s"], first["came_s"]) == (0.25, 1.0, 0.4)
    assert (first["old_role_ends_s"], first["old_role_requests"]) == (0.2, 1)
    assert (second["announced_s"], second["first_token_s"], second["came_s"]) == (0.4, 0.75, 0.5)
    assert (second["old_role_ends_s"], second["old_role_requests"]) == (1.5, 1)
    assert figures["computed_again"] == 1
    assert figures["to_decode"]["first_token_ms"] == {"median": 1000.0, "longest": 1000.0}
    assert problems_of(figures) == []


def test_gaps_count_where_they_end() -> None:
    felt = describe(made())["felt"]
    assert {name: its["gaps"] for name, its in felt.items()} == {
        "2P1D": 0, "to decode": 2, "1P2D": 2, "to prefill": 2,
    }  # fmt: skip
    assert felt["to prefill"]["gap_longest_ms"] == 1500.0
    assert felt["to decode"]["ttft_p50_ms"] == 200.0


def test_a_failed_request_and_a_role_without_a_token_are_problems() -> None:
    run = made(Request(12.0, error="unavailable"))
    run.flips.append(Flip("decode", 25.0, 25.1, 25.2))
    assert problems_of(describe(run)) == [
        "1 requests failed", "a worker made no token in its new role",
    ]  # fmt: skip


@dataclass
class Looks:
    """An operator's client that sees these roles of `w`, and from then on the last ones."""

    roles: list[tuple[str, ...]]
    refuses: bool = False
    asked: list[Any] = field(default_factory=list)

    def call(self, method: str, request: Any) -> None:
        self.asked.append((method, request.worker_id))
        if self.refuses:
            raise PreconditionError("it is the last one")

    def status(self) -> Any:
        roles = self.roles.pop(0) if len(self.roles) > 1 else self.roles[0]
        its = SimpleNamespace(worker_id="w", state="alive", roles=roles)
        return SimpleNamespace(workers=[its])


CONFIG = FlipConfig(1, 1.0, 1.0, 1, 1, announced_within_s=50.0)


def clock() -> Any:
    """A second later each time."""
    ticks = iter(range(1000))
    return lambda: float(next(ticks))


def flip(admin: Looks) -> Flip:
    return asyncio.run(flip_worker(admin, "w", "decode", CONFIG, clock()))  # type: ignore[arg-type]


def test_a_worker_with_its_old_role_or_with_both_has_not_flipped() -> None:
    admin = Looks([("prefill",), ("prefill", "decode"), ("prefill",), ("decode",)])
    found = flip(admin)
    assert admin.asked == [("FlipWorker", "w")]
    assert admin.roles == [("decode",)], "it looked until then"
    assert found.announced_s > found.commanded_s + 3


def test_a_flip_that_is_refused_or_never_seen_ends_the_run() -> None:
    with pytest.raises(ExceptionGroup) as refused:
        flip(Looks([("prefill",)], refuses=True))
    assert refused.group_contains(PreconditionError)
    with pytest.raises(ExceptionGroup) as late:
        flip(Looks([("prefill",)]))
    assert late.group_contains(FlipLateError)
