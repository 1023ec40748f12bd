"""A row is the router's that assigned it: what others say of it is answered and changes nothing."""

from __future__ import annotations

import asyncio

import pytest

from tests.worker.conftest import Play, WorkerCluster
from twolane.engine.fake import expected_answer
from twolane.params import SamplingParams
from twolane.testing.links import MemoryLink, link_pair
from twolane.v1 import worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.errors import RouterInUseError
from twolane.worker.testing import ScriptedRouter
from twolane.worker.worker import Worker

A, B = AttemptId("r", 1), AttemptId("q", 1)
PROMPT = list(range(40))
PARAMS = SamplingParams(max_tokens=50, seed=3)
ANSWER = expected_answer(PROMPT, PARAMS, 50)


def start(router: ScriptedRouter, worker: Worker, attempt: AttemptId = A, claim: int = 1) -> None:
    router.assign(
        attempt,
        PROMPT,
        prefill=worker,
        decode=worker,
        params=PARAMS,
        request_id="order-7",
        claim=claim,
    )


def intruder(town: WorkerCluster, worker: Worker, kind: str) -> ScriptedRouter:
    """Another router, or a later process of the same one."""
    if kind == "another router":
        other = ScriptedRouter(town.tasks, "other")
    else:
        town.router.cut(worker)
        other = ScriptedRouter(town.tasks, router_epoch=2)
    other.open(worker)
    return other


@pytest.mark.parametrize("kind", ["another router", "a later process"])
def test_attach_of_another_router_hears_no_token(play: Play, kind: str) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        start(town.router, worker)
        await town.router.wait_for(lambda: len(town.router.tokens[A]) >= 10)
        other = intruder(town, worker, kind)
        await asyncio.sleep(0.002)
        other.attach(worker, A, 0)
        await other.wait_for_kind(A, "TAKEN")
        assert worker.dropped() == {"not_owner": 1}
        await asyncio.sleep(1.0)
        assert other.kinds(A) == ["TAKEN"]
        assert not other.tokens[A]
        if kind == "another router":
            assert town.router.answer(A) == ANSWER, "the victim heard all of it"
        other.close()

    play(scene)


def test_cancel_of_another_router_stops_nothing(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        start(town.router, worker)
        await town.router.wait_for(lambda: len(town.router.tokens[A]) >= 10)
        other = intruder(town, worker, "another router")
        other.cancel(A, worker)
        await town.router.wait_for_kind(A, "FINISHED")
        assert town.router.answer(A) == ANSWER
        assert worker.dropped() == {"not_owner": 1}
        other.close()

    play(scene)


def test_cancel_of_another_router_keeps_no_attempt_from_starting(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        other = intruder(town, worker, "another router")
        other.cancel(A, worker)
        await asyncio.sleep(0.1)
        start(town.router, worker)
        await town.router.wait_for_kind(A, "FINISHED")
        assert town.router.answer(A) == ANSWER
        other.close()

    play(scene)


def test_retarget_of_another_router_moves_nothing(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d, e = town.add("p", "p"), town.add("d", "d"), town.add("e", "d")
        town.router.assign(A, PROMPT, prefill=p, decode=d, params=PARAMS)
        other = intruder(town, p, "another router")
        other.retarget(p, A, AttemptId("r", 2), e.address)
        await other.wait_for_kind(A, "TAKEN")
        await town.router.wait_for_kind(A, "FINISHED")
        assert town.router.answer(A) == ANSWER
        assert p.dropped() == {"not_owner": 1}
        other.close()

    play(scene)


def test_second_request_under_a_running_label_is_refused_at_once(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        start(town.router, worker)
        await town.router.wait_for(lambda: len(town.router.tokens[A]) >= 10)
        other = intruder(town, worker, "another router")
        start(other, worker, B, claim=2)
        await other.wait_for_kind(B, "REFUSED", within_s=0.1)
        assert [event.reason for event in other.rows[B]] == ["request_in_use"]
        await town.router.wait_for_kind(A, "FINISHED")
        assert town.router.answer(A) == ANSWER
        start(other, worker, B, claim=2)
        await other.wait_for_kind(B, "FINISHED")
        assert other.answer(B) == ANSWER, "the label is free again"
        other.close()

    play(scene)


def test_prefill_worker_hears_soon_that_a_refused_rows_pages_are_not_wanted(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, q, d = town.add("p", "p"), town.add("q", "p"), town.add("d", "d")
        town.router.assign(
            A, PROMPT, prefill=p, decode=d, params=PARAMS, request_id="order-7", claim=1
        )
        await town.router.wait_for_kind(A, "JOINED")
        other = ScriptedRouter(town.tasks, "other")
        other.open(q)
        other.open(d)
        other.assign(B, PROMPT, prefill=q, decode=d, params=PARAMS, request_id="order-7", claim=2)
        await other.wait_for(lambda: "DEAD" in other.kinds(B), within_s=0.5)
        assert {event.reason for event in other.rows[B]} >= {"request_in_use"}
        await town.router.wait_for_kind(A, "FINISHED")
        await town.settle()
        other.close()

    play(scene)


def test_cancelled_row_does_not_hold_its_label_while_it_ends(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        start(town.router, worker)
        await town.router.wait_for(lambda: len(town.router.tokens[A]) >= 10)
        town.router.cancel(A, worker)
        start(town.router, worker, B, claim=2)
        await town.router.wait_for_kind(B, "FINISHED")
        assert town.router.answer(B) == ANSWER

    play(scene)


def test_assign_that_comes_twice_is_answered_with_all_that_was_told(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        start(town.router, worker)
        await town.router.wait_for_kind(A, "FINISHED")
        town.router.tokens[A].clear()
        start(town.router, worker)
        await town.router.wait_for(lambda: bool(town.router.finish_of(A)), within_s=0.1)
        assert town.router.answer(A) == ANSWER
        other = intruder(town, worker, "another router")
        start(other, worker)
        await other.wait_for_kind(A, "TAKEN", within_s=0.1)
        assert worker.dropped() == {"duplicate_assign": 1, "not_owner": 1}
        other.close()

    play(scene)


def test_malformed_assign_is_refused(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        nothing = AttemptId("", 0)
        for _ in range(2):
            town.router.send(worker, worker_pb2.SessionRequest(assign=worker_pb2.Assign()))
        await town.router.wait_for(lambda: len(town.router.rows[nothing]) == 2)
        assert {event.reason for event in town.router.rows[nothing]} == {"invalid"}

    play(scene)


async def _opens(worker: Worker, router_epoch: int) -> None:
    """Raises what the worker answers within the moment."""
    here: MemoryLink[worker_pb2.SessionRequest, worker_pb2.SessionResponse]
    there: MemoryLink[worker_pb2.SessionResponse, worker_pb2.SessionRequest]
    here, there = link_pair()
    opening = worker_pb2.Open(
        router_id="router", router_epoch=router_epoch, worker_epoch=worker.context.epoch
    )
    here.send(worker_pb2.SessionRequest(open=opening))
    async with asyncio.timeout(0.01):
        await worker.serve_session(there)


def test_two_live_routers_of_one_name_do_not_throw_each_other_out(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        heartbeat = worker_pb2.SessionRequest(heartbeat=worker_pb2.Heartbeat())
        for _ in range(8):
            town.router.send(worker, heartbeat)
            await asyncio.sleep(1.0)
            with pytest.raises(RouterInUseError, match="'router'"):
                await _opens(worker, router_epoch=2)
        start(town.router, worker)
        await town.router.wait_for_kind(A, "FINISHED")
        assert worker.dropped() == {"router_in_use": 8}

    play(scene)


def test_new_process_of_a_router_is_let_in_when_the_old_ones_stream_is_broken(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        await asyncio.sleep(0.1)
        town.router.cut(worker)
        await asyncio.sleep(0.002)
        with pytest.raises(TimeoutError):  # it is served
            await _opens(worker, router_epoch=2)

    play(scene)


def test_new_process_of_a_router_is_let_in_when_the_old_one_was_unheard_for_long(
    play: Play,
) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        await asyncio.sleep(2.5)
        with pytest.raises(RouterInUseError):
            await _opens(worker, router_epoch=2)
        await asyncio.sleep(1.0)
        with pytest.raises(TimeoutError):
            await _opens(worker, router_epoch=2)

    play(scene)
