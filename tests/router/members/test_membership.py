"""Membership is pure: these tests hand it the time."""

from typing import Any

import pytest

from twolane.errors import InvalidRequestError, OverloadedError
from twolane.router.config import MembershipConfig
from twolane.router.members.member import Member, MemberState
from twolane.router.members.membership import Membership, NameTakenError, RetiredEpochError
from twolane.v1 import cluster_pb2, worker_pb2

CONFIG = MembershipConfig(suspicion_s=3, gone_after_s=30, forget_after_s=60)
BOTH = (worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE)


def announce(worker_id: Any = "w", epoch: Any = 1, **fields: Any) -> cluster_pb2.AnnounceRequest:
    defaults: dict[str, Any] = {
        "roles": BOTH,
        "model": "m",
        "fingerprint": "f",
        "n_pages": 10,
        "page_tokens": 16,
        "max_context_tokens": 100,
        "vocab_size": 50,
    }
    address = worker_pb2.WorkerAddress(worker_id=worker_id, epoch=epoch, endpoint="e")
    return cluster_pb2.AnnounceRequest(worker=address, **(defaults | fields))


@pytest.fixture
def members() -> Membership:
    """One alive worker, epoch 1, heard at 0."""
    members = Membership(CONFIG)
    assert members.announce(announce(), 0.0) is not None
    assert state(members, 1) is MemberState.JOINING
    members.opened(1, 0.0)
    assert state(members, 1) is MemberState.ALIVE
    return members


def member(members: Membership, epoch: int = 1) -> Member:
    found = members.get(epoch)
    assert found is not None
    return found


def state(members: Membership, epoch: int) -> MemberState:
    return member(members, epoch).state


def state_after_drain(members: Membership, *, undo: bool) -> MemberState:
    drained = members.drain("w", undo=undo)
    assert drained is not None
    return drained.state


def is_lost(members: Membership, epoch: Any, now: Any) -> Any:
    return members.is_lost(member(members, epoch), now)


def test_second_announce_of_an_epoch_asks_for_no_second_session(members: Membership) -> None:
    assert members.announce(announce(n_pages=20), 1.0) is None
    assert member(members).announce.n_pages == 20, "facts are the latest: roles may flip"


def test_silence_is_suspicion_after_three_seconds_and_the_end_after_thirty(
    members: Membership,
) -> None:
    members.tick(3.0)
    assert state(members, 1) is MemberState.ALIVE
    members.tick(3.1)
    assert state(members, 1) is MemberState.SUSPECT
    assert is_lost(members, 1, 3.1)
    members.heard(1, None, 4.0)
    assert state(members, 1) is MemberState.ALIVE
    assert not is_lost(members, 1, 4.0)
    members.tick(34.1)
    assert state(members, 1) is MemberState.GONE
    members.tick(94.2)
    assert members.get(1) is None


def test_broken_session_alone_does_not_lose_a_worker_but_a_refused_dial_does(
    members: Membership,
) -> None:
    members.broken(1)
    assert state(members, 1) is MemberState.SUSPECT
    assert not is_lost(members, 1, 0.1)
    members.refused(1)
    assert is_lost(members, 1, 0.1)
    members.opened(1, 0.2)
    assert state(members, 1) is MemberState.ALIVE
    assert not is_lost(members, 1, 0.2)


def test_new_epoch_that_answers_ends_the_old_one_for_good(members: Membership) -> None:
    members.broken(1)
    assert members.announce(announce(epoch=2), 1.0) is not None
    assert state(members, 1) is MemberState.SUSPECT, "an announce may be late"
    members.opened(2, 1.0)
    assert state(members, 1) is MemberState.GONE
    assert is_lost(members, 1, 1.0)
    with pytest.raises(RetiredEpochError, match="epoch 0000000000000001 of w was replaced"):
        members.announce(announce(epoch=1), 2.0)
    assert state(members, 2) is MemberState.ALIVE


def test_replaced_epoch_whose_dial_still_succeeds_does_not_end_its_successor(
    members: Membership,
) -> None:
    members.broken(1)
    members.announce(announce(epoch=2), 1.0)
    members.opened(2, 1.0)
    members.opened(1, 1.01)  # a stopped process that goes on, before its dial is called off
    members.heard(1, None, 1.01)
    assert state(members, 1) is MemberState.GONE
    assert state(members, 2) is MemberState.ALIVE
    assert members.announce(announce(epoch=2), 2.0) is None, "it is not retired"


def test_epoch_keeps_the_name_that_it_came_with(members: Membership) -> None:
    with pytest.raises(InvalidRequestError, match="epoch 0000000000000001 belongs to w"):
        members.announce(announce("v", 1), 1.0)
    members.opened(1, 2.0)
    members.tick(40.0)
    members.tick(140.0)
    assert members.get(1) is None


def test_late_announce_of_a_former_incarnation_ends_nobody() -> None:
    members = Membership(CONFIG)  # of a router that has just started
    members.announce(announce(epoch=2), 0.0)
    members.broken(2)
    members.refused(2)  # its host was slow
    assert members.announce(announce(epoch=1), 0.2) is not None, "it may be the newer one"
    members.opened(2, 0.3)
    for second in range(1, 40):
        members.heard(2, None, float(second))
        members.tick(float(second))
        with pytest.raises((NameTakenError, RetiredEpochError)):
            members.announce(announce(epoch=1), float(second))
    assert state(members, 1) is MemberState.GONE
    assert state(members, 2) is MemberState.ALIVE


def test_a_live_worker_keeps_its_name(members: Membership) -> None:
    with pytest.raises(NameTakenError, match=r"worker w is alive at .* choose another --worker-id"):
        members.announce(announce(epoch=2), 3.0)
    assert state(members, 1) is MemberState.ALIVE
    assert members.get(2) is None
    assert members.announce(announce("v", epoch=2), 3.0) is not None


def test_a_newcomer_takes_the_name_of_one_that_is_silent_broken_or_has_left(
    members: Membership,
) -> None:
    assert members.announce(announce(epoch=2), 3.1) is not None, "silent for over 3 s"
    with pytest.raises(NameTakenError):  # 2 is being dialled
        members.announce(announce(epoch=3), 3.2)
    members.refused(2)
    assert members.announce(announce(epoch=3), 3.3) is not None, "nobody answers the dial"
    members.opened(3, 3.4)
    members.announce(announce(epoch=3, leaving=True), 3.5)
    assert members.announce(announce(epoch=4), 3.6) is not None, "it has left"


def test_members_are_bounded_and_known_ones_stay() -> None:
    members = Membership(MembershipConfig(most_members=3))
    for epoch in range(1, 4):
        members.announce(announce(f"w{epoch}", epoch), 0.0)
    with pytest.raises(OverloadedError, match="3 workers, at most 3"):
        members.announce(announce("w4", 4), 0.0)
    assert members.announce(announce("w1", 1), 0.1) is None
    assert len(list(members)) == 3


def test_epoch_that_was_only_out_of_sight_may_come_back(members: Membership) -> None:
    members.tick(31.0)
    assert members.announce(announce(), 32.0) is not None
    assert state(members, 1) is MemberState.JOINING


def test_last_words_end_a_member_at_once(members: Membership) -> None:
    members.announce(announce(leaving=True), 1.0)
    assert state(members, 1) is MemberState.GONE


def test_a_worker_that_is_drained_and_starts_again_is_drained(members: Membership) -> None:
    assert state_after_drain(members, undo=False) is MemberState.DRAINING
    for epoch in (2, 3):
        members.report_gone(epoch - 1, epoch)
        members.announce(announce(epoch=epoch), epoch)
        members.opened(epoch, epoch)
        assert state(members, epoch) is MemberState.DRAINING
    assert state_after_drain(members, undo=True) is MemberState.ALIVE
    members.report_gone(3, 4.0)
    members.announce(announce(epoch=4), 4.0)
    members.opened(4, 4.0)
    assert state(members, 4) is MemberState.ALIVE, "nor is the undo forgotten"


@pytest.mark.parametrize("ended", [1, 5])
def test_name_whose_drain_is_forgotten_is_free_for_a_worker_that_takes_rows(
    members: Membership, ended: int
) -> None:
    """Whether the last worker of the name is known to be gone by then, or only named as such."""
    assert state_after_drain(members, undo=False) is MemberState.DRAINING
    if ended != 1:
        members.forget_drain("w", ended)
        assert member(members).is_drained, "another one is meant, and this one lives"
        members.report_gone(1, 1.0)
    members.forget_drain("w", ended)
    members.report_gone(1, 1.0)
    members.announce(announce(epoch=2), 2.0)
    members.opened(2, 2.0)
    assert state(members, 2) is MemberState.ALIVE


def test_who_ended_as_it_was_to_leaves_no_drain_to_its_successor(members: Membership) -> None:
    assert state_after_drain(members, undo=False) is MemberState.DRAINING
    members.forget_drain("w", 1)
    assert state(members, 1) is MemberState.DRAINING, "it gets nothing any more"
    members.report_gone(1, 1.0)
    members.announce(announce(epoch=2), 2.0)
    members.opened(2, 2.0)
    assert state(members, 2) is MemberState.ALIVE


def test_load_report_and_operator_can_both_drain(members: Membership) -> None:
    members.heard(1, worker_pb2.LoadReport(draining=True), 0.5)
    assert state(members, 1) is MemberState.DRAINING
    members.heard(1, worker_pb2.LoadReport(), 0.6)
    assert state(members, 1) is MemberState.ALIVE
    assert state_after_drain(members, undo=False) is MemberState.DRAINING
    members.heard(1, worker_pb2.LoadReport(), 0.7)
    assert state(members, 1) is MemberState.DRAINING
    members.broken(1)
    members.opened(1, 0.8)
    assert state(members, 1) is MemberState.DRAINING, "a drain outlives its session"
    assert state_after_drain(members, undo=True) is MemberState.ALIVE
    assert members.drain("x", undo=False) is None


def test_model_is_servable_only_with_live_workers_of_both_roles_and_one_fingerprint() -> None:
    members = Membership(CONFIG)
    members.announce(announce("p", 1, roles=BOTH[:1]), 0.0)
    members.announce(announce("d", 2, roles=BOTH[1:], fingerprint="other"), 0.0)
    members.opened(1, 0.0)
    members.opened(2, 0.0)
    assert members.servable_models() == set()
    members.announce(announce("e", 3, roles=BOTH[1:]), 0.0)
    assert members.servable_models() == set()
    members.opened(3, 0.0)
    assert members.servable_models() == {"m"}
    members.broken(1)
    assert members.servable_models() == set()


def test_facts_are_what_fits_somewhere_and_holds_everywhere() -> None:
    members = Membership(CONFIG)
    members.announce(announce("p", 1, roles=BOTH[:1], n_pages=7), 0.0)
    members.announce(announce("d", 2, roles=BOTH[1:], n_pages=9, max_context_tokens=80), 0.0)
    members.announce(announce("e", 3, roles=BOTH[1:], n_pages=11), 0.0)
    (facts,) = members.models()
    assert (facts.room.prefill.n_pages, facts.room.decode.n_pages) == (7, 11)
    assert facts.max_context_tokens == 80
    members.report_gone(3, 1.0)
    (facts,) = members.models()
    assert facts.room.decode.n_pages == 9
    members.report_gone(2, 1.0)
    (facts,) = members.models()
    assert facts.room.decode.n_pages == 11, "with nobody left it is still known"


def test_room_is_that_of_one_fingerprint_for_pages_move_only_within_it() -> None:
    members = Membership(CONFIG)
    for epoch, role, fingerprint, n_pages in (
        (1, BOTH[0], "old", 100),
        (2, BOTH[1], "old", 5),
        (3, BOTH[0], "new", 6),
        (4, BOTH[1], "new", 100),
        (5, BOTH[1], "alone", 1000),
    ):
        fields = {"roles": [role], "fingerprint": fingerprint, "n_pages": n_pages}
        members.announce(announce(f"w{epoch}", epoch, **fields), 0.0)
    (facts,) = members.models()
    assert (facts.room.prefill.n_pages, facts.room.decode.n_pages) == (6, 100)
    assert facts.room.n_tokens == 6 * 16 + 1


def test_room_of_a_colocated_cluster_is_one_worker_that_does_both() -> None:
    members = Membership(CONFIG)
    members.announce(announce("b", 1, n_pages=7), 0.0)
    members.announce(announce("d", 2, roles=BOTH[1:], n_pages=100), 0.0)
    (facts,) = members.models()
    assert facts.room.n_tokens == 7 * 16


@pytest.mark.parametrize("epoch", [2, 1 << 40])
def test_drain_reaches_the_incarnation_that_answers(members: Membership, epoch: int) -> None:
    members.announce(announce(epoch=epoch), 3.1)  # the other has been silent for too long
    drained = members.drain("w", undo=False)
    assert drained is member(members, 1)
    assert drained.state is MemberState.DRAINING
    members.opened(epoch, 3.2)
    assert state(members, epoch) is MemberState.DRAINING, "it takes the place of the other"


def test_member_that_is_gone_is_not_brought_back_by_a_late_word(members: Membership) -> None:
    members.report_gone(1, 1.0)
    members.heard(1, worker_pb2.LoadReport(rows=3), 1.1)
    assert state(members, 1) is MemberState.GONE
    assert member(members).load.rows == 0


def test_drain_of_a_suspect_counts_from_when_it_is_heard(members: Membership) -> None:
    members.broken(1)
    assert state_after_drain(members, undo=False) is MemberState.SUSPECT
    members.opened(1, 1.0)
    assert state(members, 1) is MemberState.DRAINING


def test_drain_may_be_asked_for_twice(members: Membership) -> None:
    for undo in (False, False, True, True):
        wanted = MemberState.ALIVE if undo else MemberState.DRAINING
        assert state_after_drain(members, undo=undo) is wanted


def test_roles_of_a_report_count_before_those_of_an_announce_that_was_under_way(
    members: Membership,
) -> None:
    members.heard(1, worker_pb2.LoadReport(roles=[worker_pb2.ROLE_DECODE]), 0.1)
    assert member(members).role_names == ["decode"]
    members.announce(announce(), 0.2)
    assert member(members).role_names == ["decode"]


def test_worker_whose_reports_name_no_roles_has_those_of_its_announce(members: Membership) -> None:
    members.heard(1, worker_pb2.LoadReport(rows=1), 0.1)
    assert member(members).role_names == ["prefill", "decode"]
    members.announce(announce(roles=[worker_pb2.ROLE_DECODE]), 0.2)
    assert member(members).role_names == ["decode"]
