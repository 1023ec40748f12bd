"""When a drain command is carried out, and when a drain can be neither undone nor made final."""

from __future__ import annotations

from typing import Any

import pytest

from twolane.errors import PreconditionError
from twolane.router.dispatch.drain_check import check_ticket, check_undo
from twolane.router.members.drain_wish import DrainWish
from twolane.router.members.member import Member
from twolane.v1 import cluster_pb2, drain_pb2, worker_pb2


def report(**drain: Any) -> worker_pb2.LoadReport:
    """Of a worker that drains, for the first time."""
    return worker_pb2.LoadReport(drains=1, drain=drain_pb2.DrainReport(number=1, **drain))


def member(**drain: Any) -> Member:
    worker = worker_pb2.WorkerAddress(worker_id="w", epoch=5)
    its = Member(cluster_pb2.AnnounceRequest(worker=worker), 0.0)
    its.load = report(**drain)
    return its


RESTS = worker_pb2.LoadReport()
RESTS_AGAIN = worker_pb2.LoadReport(drains=1)


@pytest.mark.parametrize(
    ("wish", "load", "is_settled"),
    [
        (DrainWish(enabled=True), RESTS, False),
        (DrainWish(enabled=True, begun=1), report(), True),
        (DrainWish(enabled=True, hand_over=True, begun=1), report(), False),
        (DrainWish(enabled=True, hand_over=True, begun=1), report(hands_over=True), True),
        (
            DrainWish(enabled=True),
            RESTS_AGAIN,
            True,
        ),  # another router undid it
        (DrainWish(enabled=False, begun=1), report(), False),
        (DrainWish(enabled=False, begun=1), RESTS_AGAIN, True),
        (DrainWish(enabled=False, begun=2), RESTS_AGAIN, False),  # the drain has not arrived yet
    ],
)
def test_wish_is_settled_by_a_report_that_shows_it(
    wish: DrainWish, load: worker_pb2.LoadReport, is_settled: bool
) -> None:
    assert wish.is_settled(load) is is_settled


def test_drain_whose_ticket_was_taken_is_not_undone() -> None:
    check_undo(member(has_ticket=True), undo=True)
    check_undo(member(has_ticket=True, is_taken=True), undo=False)
    with pytest.raises(PreconditionError, match="is about to be ended"):
        check_undo(member(has_ticket=True, is_taken=True), undo=True)


def test_ticket_that_was_not_given_is_not_taken() -> None:
    check_ticket(member(has_ticket=True), 1)
    for its, ticket in ((member(), 1), (member(has_ticket=True), 2), (member(has_ticket=True), 0)):
        with pytest.raises(PreconditionError, match=f"has given no ticket {ticket}"):
            check_ticket(its, ticket)
