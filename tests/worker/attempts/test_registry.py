"""Who listens to which attempt, what is told again, and what is let in no more."""

from __future__ import annotations

import pytest

from twolane.engine.step import SampledToken
from twolane.rpc.columns import GOES_ON, ColumnWriter, Logprobs
from twolane.testing.heard import heard
from twolane.v1 import sampling_pb2, worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.attempts.attempt_log import ROLES, AttemptLog
from twolane.worker.attempts.labels import Claim
from twolane.worker.attempts.owner import Owner
from twolane.worker.attempts.registry import Registry
from twolane.worker.config import SessionConfig
from twolane.worker.event_outbox import row_event

Kind = worker_pb2.RowEvent
P, D = worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE
A = AttemptId("r", 1)
TARGET = worker_pb2.WorkerAddress(worker_id="d2", epoch=7)
MINE, THEIRS = Owner("router", 1), Owner("router", 2)
NONE = Claim("", "", 0)
CONFIG = SessionConfig(grace_s=10.0, tombstone_s=6.0)


class Session:
    """Who listens."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tokens = {role: ColumnWriter(role) for role in ROLES}
        self.next_number, self.confirmed = 1, 0

    def send(self, response: worker_pb2.SessionResponse, now: float) -> None:
        raise AssertionError("the registry sends nothing itself")

    def heard(self) -> list[int]:
        """Indexes of the tokens that wait to be sent."""
        return [index for writer in self.tokens.values() for index in writer.first_indexes]


def log(
    attempt: AttemptId,
    roles: list[worker_pb2.Role],
    session: Session,
    *,
    owner: Owner = MINE,
    claim: Claim = NONE,
    sample: int = 0,
    deadline_s: float | None = None,
) -> AttemptLog:
    assign = worker_pb2.Assign(
        tenant=claim.tenant, request_id=claim.request_id, claim=claim.nonce, sample=sample
    )
    return AttemptLog(
        attempt, roles, session, owner=owner, assign=assign, row=7, deadline_s=deadline_s
    )


class Row:
    """Tells its tokens."""

    def __init__(self, log: AttemptLog) -> None:
        self.log = log
        self._ids: list[int] = []
        self._roles: set[worker_pb2.Role] = set()
        log.hear(self._ids, 0)

    def tell(
        self,
        index: int,
        role: worker_pb2.Role = D,
        finish: sampling_pb2.FinishReason = GOES_ON,
        logprobs: Logprobs | None = None,
    ) -> None:
        self._ids += range(100 + len(self._ids), 101 + index)
        sampled = SampledToken(100 + index, *(logprobs or ()))
        say = self.log.token if role in self._roles else self.log.first_token
        self._roles.add(role)
        say(role, index, sampled, finish)


def test_news_go_to_the_session_that_assigned() -> None:
    registry, one, two = Registry(CONFIG), Session("one"), Session("two")
    first, second = log(A, [D], one), log(AttemptId("q", 1), [D], two)
    registry.admit(first)
    registry.admit(second)
    row = Row(first)
    for index in (0, 1):
        row.tell(index)
    Row(second).tell(0)
    assert (one.heard(), two.heard()) == ([0, 1], [0])
    joined = row_event(A, Kind.KIND_JOINED, D)
    assert registry.dispatch([joined], 0.0) == {one: [joined]}


def test_attach_tells_again_from_the_index_and_then_goes_on() -> None:
    registry, one, two = Registry(CONFIG), Session("one"), Session("two")
    mine = log(A, [D], one)
    registry.admit(mine)
    registry.dispatch([row_event(A, Kind.KIND_JOINED, D)], 0.0)
    row = Row(mine)
    for index in range(3):
        row.tell(index)
    registry.detach(one, 1.0)
    row.tell(3)
    assert one.heard() == [0, 1, 2], "nobody listens any more"
    missed = registry.attach(A, 2, two)
    assert [token.index for token in heard(missed.tokens)] == [2, 3]
    assert [event.kind for event in missed.rows] == [Kind.KIND_JOINED]
    row.tell(4)
    assert two.heard() == [4]


@pytest.mark.parametrize("from_index", [0, 3, 5, 6, 9])
def test_what_is_told_again_is_what_was_told(from_index: int) -> None:
    registry, one = Registry(CONFIG), Session("one")
    mine = log(A, [P, D], one, sample=2)
    registry.admit(mine)
    row = Row(mine)
    row.tell(3, P, logprobs=(-1.0, ((103, -1.0), (4, -2.0))))
    row.tell(3, D, logprobs=(-1.0, ((103, -1.0), (4, -2.0))))
    row.tell(4)
    row.tell(5, D, sampling_pb2.FINISH_REASON_STOP, (-3.0, ()))
    told = heard(writer.take() for writer in one.tokens.values())
    assert len(told) == 4
    expected = [token for token in told if token.index >= from_index]
    assert heard(registry.attach(A, from_index, one).tokens) == expected
    registry.dispatch([row_event(A, Kind.KIND_FINISHED, D)], 0.0)
    assert heard(registry.attach(A, from_index, one).tokens) == expected, "its row is gone"


def test_attach_to_an_unknown_row_is_answered_gone() -> None:
    answer = Registry(CONFIG).attach(A, 0, Session("one"))
    assert [event.kind for event in answer.rows] == [Kind.KIND_GONE]


def test_ended_row_can_be_attached_for_the_grace_and_is_forgotten_then() -> None:
    registry, mine = Registry(CONFIG), log(A, [D], Session("one"))
    registry.admit(mine)
    Row(mine).tell(0)
    registry.dispatch([row_event(A, Kind.KIND_FINISHED, D)], 5.0)
    registry.expire(14.9)
    assert len(registry.attach(A, 0, Session("two")).tokens) == 1
    registry.expire(15.0)
    assert A not in registry


def test_row_that_nobody_listens_to_is_cancelled_after_the_grace() -> None:
    registry, one = Registry(CONFIG), Session("one")
    registry.admit(log(A, [D], one))
    assert registry.expire(1000.0) == [], "its router is here"
    registry.detach(one, 1000.0)
    assert registry.expire(1009.9) == []
    assert [log.attempt for log in registry.expire(1010.0)] == [A]


def test_row_that_is_cancelled_and_not_yet_over_is_not_cancelled_again() -> None:
    """Its step may hang, and time goes on."""
    registry = Registry(CONFIG)
    registry.admit(log(A, [D], Session("one"), deadline_s=7.0))
    assert [log.attempt for log in registry.expire(7.0)] == [A]
    assert registry.cancel(A, MINE, 7.0)
    assert registry.expire(7.25) == []


def test_row_past_its_deadline_is_cancelled() -> None:
    registry = Registry(CONFIG)
    registry.admit(log(A, [D], Session("one"), deadline_s=7.0))
    assert registry.expire(6.9) == []
    assert [log.attempt for log in registry.expire(7.0)] == [A]


def test_cancelled_attempt_is_let_in_again_only_after_its_tombstone() -> None:
    registry = Registry(CONFIG)
    assert registry.cancel(A, MINE, 0.0)
    registry.expire(5.9)
    assert registry.admit(log(A, [D], Session("one"))) == "tombstone"
    registry.expire(6.0)
    assert registry.admit(log(A, [D], Session("one"))) is None


def test_cancel_of_another_router_buries_nothing() -> None:
    registry = Registry(CONFIG)
    registry.admit(log(A, [D], Session("one")))
    assert not registry.cancel(A, THEIRS, 0.0)
    later = AttemptId("later", 1)
    assert registry.cancel(later, THEIRS, 0.0), "it is not here: theirs, for all we know"
    assert registry.admit(log(later, [D], Session("one"))) is None, "but it was ours"


def test_label_of_a_live_row_is_refused_to_another_claim() -> None:
    registry = Registry(CONFIG)
    mine, theirs = Claim("t", "x", 1), Claim("t", "x", 2)
    assert registry.admit(log(A, [P], Session("one"), claim=mine)) is None
    assert (
        registry.admit(log(AttemptId("q", 1), [P], Session("two"), claim=theirs))
        == "request_in_use"
    )
    assert registry.admit(log(AttemptId("r", 2), [D], Session("one"), claim=mine)) is None, (
        "a later try"
    )
    other = Claim("other tenant", "x", 2)
    assert registry.admit(log(AttemptId("q", 1), [P], Session("two"), claim=other)) is None


@pytest.mark.parametrize("end", ["cancelled", "ended"])
def test_label_is_free_again_once_its_row_is_cancelled_or_has_ended(end: str) -> None:
    registry = Registry(CONFIG)
    registry.admit(log(A, [P], Session("one"), claim=Claim("t", "x", 1)))
    if end == "cancelled":
        registry.cancel(A, MINE, 0.0)
    else:
        registry.dispatch([row_event(A, Kind.KIND_FINISHED, P)], 0.0)
    assert (
        registry.admit(log(AttemptId("q", 1), [P], Session("two"), claim=Claim("t", "x", 2)))
        is None
    )


def test_retargeted_row_keeps_its_label_until_it_ends() -> None:
    registry = Registry(CONFIG)
    registry.admit(log(A, [P], Session("one"), claim=Claim("t", "x", 1)))
    following, theirs = AttemptId("r", 2), Claim("t", "x", 2)
    registry.follow(registry.successor(A, following, TARGET, [P], row=8))
    registry.dispatch([row_event(A, Kind.KIND_RETARGETED, P)], 0.0)
    assert (
        registry.admit(log(AttemptId("q", 1), [P], Session("two"), claim=theirs))
        == "request_in_use"
    )
    registry.dispatch([row_event(following, Kind.KIND_FINISHED, P)], 0.0)
    assert registry.admit(log(AttemptId("q", 1), [P], Session("two"), claim=theirs)) is None


def test_handed_over_row_of_both_roles_lives_on() -> None:
    registry = Registry(CONFIG)
    registry.admit(log(A, [P, D], Session("one")))
    registry.dispatch([row_event(A, Kind.KIND_HANDED_OVER, P)], 0.0)
    assert registry.n_live == 1
    registry.dispatch([row_event(A, Kind.KIND_FINISHED, D)], 0.0)
    assert registry.n_live == 0


def test_retargeted_row_is_heard_under_its_next_attempt() -> None:
    registry, one = Registry(CONFIG), Session("one")
    registry.admit(log(A, [P], one))
    following = registry.successor(A, AttemptId("r", 2), TARGET, [P], row=8)
    registry.follow(following)
    registry.dispatch([row_event(A, Kind.KIND_RETARGETED, P)], 0.0)
    assert registry.n_live == 1
    Row(following).tell(0, P)
    assert list(one.tokens[P].rows) == [8]


def test_repeated_retarget_is_known_by_its_heir_and_its_target() -> None:
    registry = Registry(CONFIG)
    registry.admit(log(A, [P], Session("one")))
    following = AttemptId("r", 2)
    assert not registry.has_followed(A, following, 7)
    registry.follow(registry.successor(A, following, TARGET, [P], row=8))
    assert registry.has_followed(A, following, 7)
    assert not registry.has_followed(A, following, 8), "another target"
    assert not registry.has_followed(following, AttemptId("r", 3), 7)


def test_row_goes_on_only_as_an_attempt_that_is_later_and_neither_here_nor_cancelled() -> None:
    registry, second, third = Registry(CONFIG), AttemptId("r", 2), AttemptId("r", 3)
    assert not registry.can_follow(second, third), "it is not here"
    registry.admit(log(second, [P], Session("one")))
    assert registry.can_follow(second, third)
    assert not registry.can_follow(second, AttemptId("r", 1)), "earlier"
    registry.cancel(third, THEIRS, 0.0)
    assert registry.can_follow(second, third), "what another router buries is not ours"
    registry.cancel(third, MINE, 0.0)
    assert not registry.can_follow(second, third), "cancelled"
    fourth = AttemptId("r", 4)
    registry.admit(log(fourth, [P], Session("one")))
    assert not registry.can_follow(second, fourth), "here already"
