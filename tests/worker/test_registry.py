"""Who listens to which attempt, what is told again, and what is let in no more."""

from __future__ import annotations

import pytest

from twolane.v1 import worker_pb2
from worker.attempt_id import AttemptId
from worker.attempt_log import AttemptLog
from worker.config import SessionConfig
from worker.labels import Claim
from worker.news import row_event
from worker.owner import Owner
from worker.registry import Registry

Kind = worker_pb2.RowEvent
P, D = worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE
A = AttemptId("r", 1)
MINE, THEIRS = Owner("router", 1), Owner("router", 2)
NONE = Claim("", "", 0)
CONFIG = SessionConfig(grace_s=10.0, tombstone_s=6.0)


def log(
    attempt: AttemptId,
    roles: list[worker_pb2.Role],
    session: str,
    *,
    owner: Owner = MINE,
    claim: Claim = NONE,
    deadline_s: float | None = None,
) -> AttemptLog:
    return AttemptLog(attempt, roles, session, owner=owner, claim=claim, deadline_s=deadline_s)


def token(index: int, attempt: AttemptId = A) -> worker_pb2.TokenEvent:
    return worker_pb2.TokenEvent(key=attempt.key, index=index, token_id=100 + index)


def test_news_go_to_the_session_that_assigned() -> None:
    registry = Registry(CONFIG)
    registry.admit(log(A, [D], "one"))
    registry.admit(log(AttemptId("q", 1), [D], "two"))
    of_two = token(0, AttemptId("q", 1))
    heard = registry.dispatch([token(0), of_two, token(1)], 0.0)
    assert heard == {"one": [token(0), token(1)], "two": [of_two]}


def test_attach_tells_again_from_the_index_and_then_goes_on() -> None:
    registry = Registry(CONFIG)
    registry.admit(log(A, [D], "one"))
    registry.dispatch([row_event(A, Kind.KIND_JOINED, D), token(0), token(1), token(2)], 0.0)
    registry.detach("one", 1.0)
    assert registry.dispatch([token(3)], 1.0) == {}, "nobody listens: nothing is sent"
    missed = registry.attach(A, 2, "two")
    assert [event.index for event in missed.tokens] == [2, 3]
    assert [event.kind for event in missed.rows] == [Kind.KIND_JOINED]
    assert list(registry.dispatch([token(4)], 2.0)) == ["two"]


def test_attach_to_an_unknown_row_is_answered_gone() -> None:
    answer = Registry(CONFIG).attach(A, 0, "one")
    assert [event.kind for event in answer.rows] == [Kind.KIND_GONE]


def test_ended_row_can_be_attached_for_the_grace_and_is_forgotten_then() -> None:
    registry = Registry(CONFIG)
    registry.admit(log(A, [D], "one"))
    registry.dispatch([token(0), row_event(A, Kind.KIND_FINISHED, D)], 5.0)
    registry.expire(14.9)
    assert len(registry.attach(A, 0, "two").tokens) == 1
    registry.expire(15.0)
    assert A not in registry


def test_row_that_nobody_listens_to_is_cancelled_after_the_grace() -> None:
    registry = Registry(CONFIG)
    registry.admit(log(A, [D], "one"))
    assert registry.expire(1000.0) == [], "its router is here"
    registry.detach("one", 1000.0)
    assert registry.expire(1009.9) == []
    assert [log.attempt for log in registry.expire(1010.0)] == [A]


def test_row_past_its_deadline_is_cancelled() -> None:
    registry = Registry(CONFIG)
    registry.admit(log(A, [D], "one", deadline_s=7.0))
    assert registry.expire(6.9) == []
    assert [log.attempt for log in registry.expire(7.0)] == [A]


def test_cancelled_attempt_is_let_in_again_only_after_its_tombstone() -> None:
    registry = Registry(CONFIG)
    assert registry.cancel(A, MINE, 0.0)
    registry.expire(5.9)
    assert registry.admit(log(A, [D], "one")) == "tombstone"
    registry.expire(6.0)
    assert registry.admit(log(A, [D], "one")) == ""


def test_cancel_of_another_router_buries_nothing() -> None:
    registry = Registry(CONFIG)
    registry.admit(log(A, [D], "one"))
    assert not registry.cancel(A, THEIRS, 0.0)
    later = AttemptId("later", 1)
    assert registry.cancel(later, THEIRS, 0.0), "it is not here: theirs, for all we know"
    assert registry.admit(log(later, [D], "one")) == "", "but it was ours"


def test_label_of_a_live_row_is_refused_to_another_claim() -> None:
    registry = Registry(CONFIG)
    mine, theirs = Claim("t", "x", 1), Claim("t", "x", 2)
    assert registry.admit(log(A, [P], "one", claim=mine)) == ""
    assert registry.admit(log(AttemptId("q", 1), [P], "two", claim=theirs)) == "request_in_use"
    assert registry.admit(log(AttemptId("r", 2), [D], "one", claim=mine)) == "", "a later try"
    other = Claim("other tenant", "x", 2)
    assert registry.admit(log(AttemptId("q", 1), [P], "two", claim=other)) == ""


@pytest.mark.parametrize("end", ["cancelled", "ended"])
def test_label_is_free_again_once_its_row_is_cancelled_or_has_ended(end: str) -> None:
    registry = Registry(CONFIG)
    registry.admit(log(A, [P], "one", claim=Claim("t", "x", 1)))
    if end == "cancelled":
        registry.cancel(A, MINE, 0.0)
    else:
        registry.dispatch([row_event(A, Kind.KIND_FINISHED, P)], 0.0)
    assert registry.admit(log(AttemptId("q", 1), [P], "two", claim=Claim("t", "x", 2))) == ""


def test_retargeted_row_keeps_its_label_until_it_ends() -> None:
    registry = Registry(CONFIG)
    registry.admit(log(A, [P], "one", claim=Claim("t", "x", 1)))
    following, theirs = AttemptId("r", 2), Claim("t", "x", 2)
    registry.follow(A, following, target_epoch=7)
    registry.dispatch([row_event(A, Kind.KIND_RETARGETED, P)], 0.0)
    assert registry.admit(log(AttemptId("q", 1), [P], "two", claim=theirs)) == "request_in_use"
    registry.dispatch([row_event(following, Kind.KIND_FINISHED, P)], 0.0)
    assert registry.admit(log(AttemptId("q", 1), [P], "two", claim=theirs)) == ""


def test_handed_over_row_of_both_roles_lives_on() -> None:
    registry = Registry(CONFIG)
    registry.admit(log(A, [P, D], "one"))
    registry.dispatch([row_event(A, Kind.KIND_HANDED_OVER, P)], 0.0)
    assert registry.n_live == 1
    registry.dispatch([row_event(A, Kind.KIND_FINISHED, D)], 0.0)
    assert registry.n_live == 0


def test_retargeted_row_is_heard_under_its_next_attempt() -> None:
    registry = Registry(CONFIG)
    registry.admit(log(A, [P], "one"))
    following = AttemptId("r", 2)
    registry.follow(A, following, target_epoch=7)
    registry.dispatch([row_event(A, Kind.KIND_RETARGETED, P)], 0.0)
    assert registry.n_live == 1
    assert list(registry.dispatch([token(0, following)], 0.0)) == ["one"]


def test_repeated_retarget_is_known_by_its_heir_and_its_target() -> None:
    registry = Registry(CONFIG)
    registry.admit(log(A, [P], "one"))
    following = AttemptId("r", 2)
    assert not registry.has_followed(A, following, 7)
    registry.follow(A, following, target_epoch=7)
    assert registry.has_followed(A, following, 7)
    assert not registry.has_followed(A, following, 8), "another target"
    assert not registry.has_followed(following, AttemptId("r", 3), 7)
