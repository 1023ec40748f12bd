"""A router that has not run for a while: its own pause is no silence of its workers."""

from __future__ import annotations

import asyncio

import pytest

from tests.router.members.test_membership import announce
from twolane.router.config import MembershipConfig
from twolane.router.members.member import MemberState
from twolane.router.members.membership import Membership
from twolane.router.members.own_pause import excuse_silence
from twolane.router.requests.attempt import later
from twolane.router.requests.request import Request, RequestState
from twolane.router.router import Router
from twolane.router.testing.client import ask, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import expected_answer
from twolane.router.testing.scenario import PROMPT, TWO_BY_TWO, N, counters
from twolane.testing.virtual_time import VirtualTimeLoop
from twolane.v1 import sampling_pb2, worker_pb2

SUSPICION_S = 3.0


def stop_for(seconds: float) -> None:
    """Nothing of this process runs for so long, and then all that was due."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop._jumping.now_s += seconds


def test_no_worker_is_suspected_for_a_pause_of_the_router() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        asking = asyncio.create_task(ask(router, message(PROMPT, max_tokens=N)))
        await asyncio.sleep(0.2)
        stop_for(2 * SUSPICION_S)
        outcome = await asking
        assert outcome.tokens == expected_answer(PROMPT, N)
        assert outcome.ledger.attempts == 1
        assert not [name for name in counters(router) if name.startswith("resumes")]
        assert {worker.state for worker in router.status().workers} == {"alive"}

    play(script)


def told(request: Request, index: int) -> worker_pb2.TokenColumns:
    """Any token of the request's decode worker."""
    assert request.attempt is not None
    return worker_pb2.TokenColumns(
        role=worker_pb2.ROLE_DECODE,
        rows=[request.attempt.row],
        first_indexes=[index],
        token_ids=[1],
    )


def say(router: Router, request: Request, columns: worker_pb2.TokenColumns) -> None:
    assert request.attempt is not None
    said = worker_pb2.SessionResponse(tokens=[columns])
    router.session_message(request.attempt.decode_epoch, said)


def told_too_far(router: Router) -> Request:
    """The only request, of which a token has come before those in front of it: the router has asked
    the worker for these."""
    (request,) = router._dispatcher.board.requests.values()
    say(router, request, told(request, len(request.answer.tokens) + 3))
    return request


@pytest.mark.parametrize("pause_s", [1.2, 2 * SUSPICION_S])
def test_what_a_worker_owes_may_come_later_by_a_pause_of_the_router(pause_s: float) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        asking = asyncio.create_task(ask(router, message(PROMPT, max_tokens=N)))
        await asyncio.sleep(0.2)
        told_too_far(router)
        stop_for(pause_s)  # longer than it waits for missing events
        outcome = await asking
        assert outcome.tokens == expected_answer(PROMPT, N)
        assert not [name for name in counters(router) if name.startswith("resumes")]

    play(script, TWO_BY_TWO)


def test_figures_of_an_answer_may_come_later_by_a_pause_of_the_router() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        asking = asyncio.create_task(ask(router, message(PROMPT, max_tokens=N)))
        await asyncio.sleep(0.2)
        (request,) = router._dispatcher.board.requests.values()
        last = told(request, len(request.answer.tokens))
        last.ends.add(at=0, finish_reason=sampling_pb2.FINISH_REASON_LENGTH)
        say(router, request, last)
        assert request.state is RequestState.ENDING
        due = request.due
        assert due is not None
        router._dispatcher.tick(due + 1.9, 2.0)
        assert request.due == due + 2.0
        assert (await asking).error is None

    play(script, TWO_BY_TWO)


def test_what_is_due_since_a_pause_is_not_put_off_by_all_of_it() -> None:
    paused_s, now, most_s = 30.0, 100.0, 1.0
    assert later(70.5, paused_s, now + most_s) == 100.5
    assert later(100.8, paused_s, now + most_s) == 101.0, "its wait began since"
    assert later(105.0, paused_s, now + most_s) == 105.0
    assert later(None, paused_s, now + most_s) is None


def test_worker_that_owes_after_a_pause_is_given_up_in_its_time() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        asking = asyncio.create_task(ask(router, message(PROMPT, max_tokens=N)))
        await asyncio.sleep(0.2)
        request = told_too_far(router)
        assert request.attempt is not None
        assert request.attempt.gap_due is not None
        due, config = request.attempt.gap_due, router.config.dispatch
        router._dispatcher.tick(due, config.attach_wait_s / 2)
        assert counters(router)["resumes.missing_events"] == 1, "no pause that could be the cause"
        await asking

    play(script, TWO_BY_TWO)


def test_worker_that_stays_silent_after_a_pause_is_suspected() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        asking = asyncio.create_task(ask(router, message(PROMPT, max_tokens=N)))
        await asyncio.sleep(0.2)
        (status,) = router.status().requests
        cluster.workers[status.decode_worker].freeze()
        stop_for(2 * SUSPICION_S)
        outcome = await asking
        assert outcome.tokens == expected_answer(PROMPT, N)
        assert counters(router)["resumes.decode_worker_lost"] == 1
        cluster.workers[status.decode_worker].thaw()

    play(script, TWO_BY_TWO, clean_after_s=4.0)


@pytest.mark.parametrize(("late_s", "state"), [(1.5, "SUSPECT"), (1.6, "ALIVE")])
def test_only_a_pause_that_may_be_taken_for_silence_counts(late_s: float, state: str) -> None:
    members = Membership(MembershipConfig(suspicion_s=SUSPICION_S))
    members.announce(announce(), 0.0)
    members.opened(1, 0.0)
    excuse_silence(members, late_s, 4.0)
    members.tick(4.0)
    assert next(iter(members)).state is MemberState[state]


def test_worker_that_was_suspected_before_a_pause_is_as_lost_as_it_was() -> None:
    members = Membership(MembershipConfig(suspicion_s=SUSPICION_S))
    members.announce(announce(), 0.0)
    members.opened(1, 0.0)
    members.broken(1)
    excuse_silence(members, 4.0, 4.0)
    assert members.is_lost(next(iter(members)), 4.0)


def test_pauses_that_repeat_hide_no_silent_worker() -> None:
    members = Membership(MembershipConfig(suspicion_s=SUSPICION_S))
    members.announce(announce(), 0.0)
    members.opened(1, 0.0)
    for now in (2.5, 5.0, 7.5, 10.0):
        excuse_silence(members, 1.6, now)
        members.tick(now)
    assert next(iter(members)).state is MemberState.SUSPECT
