"""Streams with routers: opening, loss, ATTACH, grace, drain, late and doubled commands."""

from __future__ import annotations

import asyncio

import pytest

from tests.worker.conftest import Play, WorkerCluster
from twolane.engine.fake import expected_answer
from twolane.errors import InvalidRequestError
from twolane.params import SamplingParams
from twolane.rpc.params import params_to_proto
from twolane.testing.links import MemoryLink, link_pair
from twolane.v1 import drain_pb2, worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.config import SessionConfig
from twolane.worker.errors import StaleEpochError
from twolane.worker.worker import Worker

A = AttemptId("r", 1)
PROMPT = list(range(40))
PARAMS = SamplingParams(max_tokens=50, seed=3)
ANSWER = expected_answer(PROMPT, PARAMS, 50)


def start(
    town: WorkerCluster,
    worker: Worker,
    attempt: AttemptId = A,
    params: SamplingParams = PARAMS,
    time_left_s: float = 0.0,
) -> None:
    town.router.assign(
        attempt, PROMPT, prefill=worker, decode=worker, params=params, time_left_s=time_left_s
    )


def session_pair() -> tuple[
    MemoryLink[worker_pb2.SessionRequest, worker_pb2.SessionResponse],
    MemoryLink[worker_pb2.SessionResponse, worker_pb2.SessionRequest],
]:
    return link_pair()


def test_stream_opens_with_the_address_and_a_load_report(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        await town.router.wait_for(lambda: "w" in town.router.loads, within_s=0.01)
        assert town.router.loads["w"].pages.free == worker.context.spec.n_pages

    play(scene)


def test_stream_for_another_incarnation_is_refused(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd", open_stream=False)
        here, there = session_pair()
        opening = worker_pb2.Open(
            router_id="x", router_epoch=1, worker_epoch=worker.context.epoch + 1
        )
        here.send(worker_pb2.SessionRequest(open=opening))
        with pytest.raises(StaleEpochError, match=str(worker.context.epoch)):
            await worker.serve_session(there)
        assert worker.dropped() == {"epoch": 1}

    play(scene)


def test_stream_on_which_nobody_speaks_is_closed_within_seconds(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd", open_stream=False)
        _, there = session_pair()
        async with asyncio.timeout(6.0):
            with pytest.raises(InvalidRequestError, match="within 5 s"):
                await worker.serve_session(there)
        town.router.open(worker)
        await town.router.wait_for(lambda: "w" in town.router.loads, within_s=1.0)

    play(scene)


def test_stream_that_does_not_begin_with_open_is_refused(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd", open_stream=False)
        for first in (
            worker_pb2.SessionRequest(heartbeat=worker_pb2.Heartbeat()),
            worker_pb2.SessionRequest(),
            worker_pb2.SessionRequest(
                open=worker_pb2.Open(router_epoch=1, worker_epoch=worker.context.epoch)
            ),
            worker_pb2.SessionRequest(
                open=worker_pb2.Open(router_id="x", worker_epoch=worker.context.epoch)
            ),
        ):
            here, there = session_pair()
            here.send(first)
            with pytest.raises(InvalidRequestError):
                await worker.serve_session(there)

    play(scene)


def test_empty_and_repeated_commands_are_counted_and_the_stream_goes_on(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        opening = worker_pb2.Open(
            router_id="router", router_epoch=1, worker_epoch=worker.context.epoch
        )
        town.router.send(worker, worker_pb2.SessionRequest())
        town.router.send(worker, worker_pb2.SessionRequest(open=opening))
        start(town, worker)
        start(town, worker)
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(A))
        assert worker.dropped() == {"malformed": 1, "duplicate_open": 1, "duplicate_assign": 1}
        assert town.router.answer(A) == ANSWER

    play(scene)


def test_idle_worker_is_heard_each_second(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        town.add("w", "pd")
        before = town.router.n_messages
        await asyncio.sleep(10.0)
        assert 8 <= town.router.n_messages - before <= 11

    play(scene)


def test_busy_worker_sends_one_message_a_step(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        attempts = [AttemptId(f"r{i}", 1) for i in range(8)]
        for a in attempts:
            start(town, worker, a)
        before = town.router.n_messages
        await town.router.wait_for(lambda: all(town.router.finish_of(a) for a in attempts))
        assert town.router.n_messages - before <= worker._watch.n_steps + 2

    play(scene)


@pytest.mark.parametrize("cut_at_tokens", [0, 1, 2, 10, 49])
def test_answer_continues_after_a_cut_and_attach(play: Play, cut_at_tokens: int) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        start(town, worker)
        await town.router.wait_for(lambda: len(town.router.tokens[A]) >= cut_at_tokens)
        town.router.cut(worker)
        await asyncio.sleep(0.5)
        heard = len({event.index for event in town.router.tokens[A]})
        town.router.open(worker)
        town.router.attach(worker, A, heard)
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(A))
        assert town.router.answer(A) == ANSWER
        await town.settle(0.1)

    play(scene)


def test_tokens_after_attach_come_in_order_on_the_new_stream(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        start(town, worker)
        await town.router.wait_for(lambda: len(town.router.tokens[A]) >= 10)
        town.router.cut(worker)
        town.router.tokens[A].clear()
        town.router.open(worker)
        await asyncio.sleep(0.02)
        assert not town.router.tokens[A], "nothing before ATTACH"
        town.router.attach(worker, A, 5)
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(A))
        indices = [event.index for event in town.router.tokens[A]]
        assert indices == list(range(5, 50))

    play(scene)


def test_second_stream_of_a_router_takes_the_place_of_the_first(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        await asyncio.sleep(0.01)
        first = town.router._links["w"]
        town.router.open(worker)
        await asyncio.wait_for(first.wait_broken(), 0.1)
        start(town, worker)
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(A))

    play(scene)


def test_row_of_a_lost_router_is_cancelled_after_the_grace(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        slow = SamplingParams(max_tokens=3000, seed=1)
        worker = town.add("w", "pd", sessions=SessionConfig(grace_s=2.0))
        start(town, worker, params=slow)
        await town.router.wait_for(lambda: len(town.router.tokens[A]) >= 3)
        town.router.cut(worker)
        await asyncio.sleep(1.7)
        assert [row.state for row in worker.inspect().rows] == ["running"]
        await asyncio.sleep(0.8)
        assert not worker.inspect().rows
        await town.settle(0.0)

    play(scene)


def test_row_past_its_deadline_is_cancelled_by_the_worker_itself(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        slow = SamplingParams(max_tokens=3000, seed=1)
        worker = town.add("w", "pd")
        start(town, worker, params=slow, time_left_s=1.0)
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(A), within_s=2.0)
        assert town.router.rows[A][-1].reason == "cancelled"
        await town.settle(0.1)

    play(scene)


def test_late_assign_of_a_cancelled_attempt_is_refused(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        town.router.cancel(A, worker)
        start(town, worker)
        await town.router.wait_for_kind(A, "REFUSED")
        assert [event.reason for event in town.router.rows[A]] == ["tombstone"]
        assert worker.dropped() == {"tombstone": 1}
        await asyncio.sleep(1.0)
        assert not town.router.tokens[A]
        await asyncio.sleep(2.0)
        start(town, worker)
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(A))

    play(scene)


def test_draining_worker_refuses_new_rows_and_finishes_old_ones(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        start(town, worker)
        await town.router.wait_for(lambda: len(town.router.tokens[A]) >= 3)
        town.router.send(worker, worker_pb2.SessionRequest(drain=drain_pb2.Drain(enabled=True)))
        late = AttemptId("late", 1)
        start(town, worker, late)
        await town.router.wait_for(lambda: "REFUSED" in town.router.kinds(late))
        assert town.router.rows[late][0].reason == "draining"
        assert not worker.is_drained
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(A))
        await worker.wait_drained()
        await town.router.wait_for(lambda: town.router.loads["w"].drained)
        town.router.send(worker, worker_pb2.SessionRequest(drain=drain_pb2.Drain(enabled=False)))
        again = AttemptId("again", 1)
        start(town, worker, again)
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(again))

    play(scene)


@pytest.mark.parametrize(
    ("roles", "reason"), [("p", "no_role"), ("d", "no_role")], ids=["prefill only", "decode only"]
)
def test_role_that_is_not_here_is_refused(play: Play, roles: str, reason: str) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", roles)
        start(town, worker)
        await town.router.wait_for(lambda: "REFUSED" in town.router.kinds(A))
        assert town.router.rows[A][0].reason == reason

    play(scene)


def test_assign_for_another_epoch_is_refused(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        address = worker.address
        address.epoch += 1
        stale = worker_pb2.Assign(
            key=A.key,
            roles=[worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE],
            token_ids=[1],
            n_prompt=1,
            prefill=address,
            decode=address,
        )
        town.router.send(worker, worker_pb2.SessionRequest(assign=stale))
        await town.router.wait_for_kind(A, "REFUSED")
        assert [event.reason for event in town.router.rows[A]] == ["epoch"]
        assert worker.dropped() == {"epoch": 1}

    play(scene)


@pytest.mark.parametrize("role", [worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE])
@pytest.mark.parametrize("lacks", ["epoch", "worker_id"])
def test_half_of_a_row_whose_other_worker_is_not_named_is_refused(
    play: Play, role: worker_pb2.Role, lacks: str
) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        other = worker_pb2.WorkerAddress(worker_id="other", epoch=77, endpoint="other")
        other.ClearField(lacks)
        mine, is_prefill = worker.address, role == worker_pb2.ROLE_PREFILL
        assign = worker_pb2.Assign(
            key=A.key,
            row=1,
            roles=[role],
            token_ids=[1, 2, 3],
            n_prompt=3,
            sampling=params_to_proto(SamplingParams(max_tokens=5, seed=1)),
            prefill=mine if is_prefill else other,
            decode=other if is_prefill else mine,
        )
        town.router.send(worker, worker_pb2.SessionRequest(assign=assign))
        await town.router.wait_for_kind(A, "REFUSED")
        assert town.router.rows[A][0].reason == "invalid"

    play(scene)


def test_row_of_both_roles_needs_no_address(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        assign = worker_pb2.Assign(
            key=A.key,
            row=1,
            roles=[worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE],
            token_ids=[1, 2, 3],
            n_prompt=3,
            sampling=params_to_proto(SamplingParams(max_tokens=5, seed=1)),
        )
        town.router._row_numbers[A] = assign.row
        town.router.send(worker, worker_pb2.SessionRequest(assign=assign))
        await town.router.wait_for_kind(A, "FINISHED")

    play(scene)
