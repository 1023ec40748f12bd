"""Workers and streams that go away in the middle of a transfer: judge, retarget, resume, wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.worker.conftest import Play, WorkerCluster
from twolane.decode_worker.config import DecodeConfig
from twolane.engine.fake import FakeEngine, FakeEngineConfig, expected_answer
from twolane.engine.step import RowWork
from twolane.kvtransfer.config import ReceiverConfig
from twolane.kvtransfer.events import Abandoned, Landed, ReceiverEvent
from twolane.kvtransfer.testing.memory import Faults
from twolane.params import SamplingParams
from twolane.prefill_worker.config import PrefillConfig
from twolane.rpc.params import params_to_proto
from twolane.v1 import drain_pb2, worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.config import StepLimits
from twolane.worker.steps.step_runner import LandedStep, OnSubmitted
from twolane.worker.testing import DECODE, PREFILL
from twolane.worker.worker import Worker

A, A2 = AttemptId("r", 1), AttemptId("r", 2)
SLOW_STEPS = FakeEngineConfig(n_pages=256, step_overhead_s=0.4)
SLOW = StepLimits(step_tokens=32, decode_rows=8)
PROMPT = [(i * 31 + 5) % 251 for i in range(500)]
PARAMS = SamplingParams(max_tokens=30, seed=7)
ANSWER = expected_answer(PROMPT, PARAMS, 30)


def start(town: WorkerCluster, p: Worker, d: Worker, attempt: AttemptId = A) -> None:
    town.router.assign(attempt, PROMPT, prefill=p, decode=d, params=PARAMS)


def judge(town: WorkerCluster, d: Worker, epoch: int) -> None:
    town.router.send(d, worker_pb2.SessionRequest(judge_peer=worker_pb2.JudgePeer(epoch=epoch)))


def retarget(town: WorkerCluster, p: Worker, d: Worker) -> None:
    town.router.retarget(p, A, A2, d.address)


def assign_decode(town: WorkerCluster, attempt: AttemptId, p: Worker, d: Worker) -> None:
    """The new attempt's decode half alone: its prefill half is a RETARGET."""
    assign = worker_pb2.Assign(
        key=attempt.key,
        row=town.router.row_number(attempt),
        roles=[DECODE],
        token_ids=PROMPT,
        n_prompt=len(PROMPT),
        prefill=p.address,
        decode=d.address,
        growth_tokens=30,
    )
    assign.sampling.CopyFrom(params_to_proto(PARAMS))
    town.router.send(d, worker_pb2.SessionRequest(assign=assign))


def test_prefill_that_dies_while_computing_is_judged_dead(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p", limits=SLOW), town.add("d", "d")
        start(town, p, d)
        await asyncio.sleep(0.03)
        await town.kill(p)
        judge(town, d, p.context.epoch)
        await town.router.wait_for(lambda: "DEAD" in town.router.kinds(A, DECODE), within_s=1.0)
        await town.settle(1.0)

    play(scene)


def test_decode_finds_out_by_itself_that_prefill_died(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p", limits=SLOW), town.add("d", "d")
        start(town, p, d)
        await asyncio.sleep(0.03)
        await town.kill(p)
        await town.router.wait_for(lambda: "DEAD" in town.router.kinds(A, DECODE), within_s=2.0)
        await town.settle(1.0)

    play(scene)


def test_row_that_landed_goes_on_though_its_prefill_worker_died(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p"), town.add("d", "d")
        start(town, p, d)
        await town.router.wait_for(lambda: "JOINED" in town.router.kinds(A))
        await town.kill(p)
        judge(town, d, p.context.epoch)
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(A, DECODE))
        assert "LANDED" in town.router.kinds(A, DECODE)
        assert town.router.answer(A) == ANSWER
        await town.settle(0.5)

    play(scene)


@pytest.mark.parametrize("is_lost", [True, False], ids=["decode lost", "decode heard"])
def test_decode_worker_outlives_a_row_given_up_in_mid_step(
    play: Play, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p"), town.add("d", "d", engine=SLOW_STEPS)
        busy = AttemptId("busy", 1)
        town.router.assign(busy, range(20), prefill=p, decode=d, params=PARAMS)
        await town.router.wait_for(lambda: "JOINED" in town.router.kinds(busy))
        role, heard = d.roles.decode, list[ReceiverEvent]()
        assert role is not None
        act = role.on_transfers

        def listen(events: Sequence[ReceiverEvent]) -> None:
            heard.extend(events)
            act(events)

        monkeypatch.setattr(role, "on_transfers", listen)
        start(town, p, d)
        while not heard:
            await asyncio.sleep(0.001)
        if is_lost:
            town.router.cut(d)
        town.router.cancel(A, p)
        await asyncio.sleep(0.1)
        assert [type(event) for event in heard] == [Landed, Abandoned], "both in one step"
        assert "JOINED" not in town.router.kinds(A)
        await asyncio.sleep(2)
        assert not town.lives["d"].done()
        if not is_lost:
            assert town.router.kinds(A, DECODE) == ["DEAD"]
            await town.router.wait_for(lambda: bool(town.router.finish_of(busy)))

    play(scene)


def test_rows_of_another_prefill_worker_are_not_judged(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p"), town.add("d", "d")
        start(town, p, d)
        await town.router.wait_for(lambda: "JOINED" in town.router.kinds(A))
        judge(town, d, p.context.epoch + 1)
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(A, DECODE))
        assert town.router.kinds(A, DECODE) == ["JOINED", "FINISHED"]

    play(scene)


def test_verdict_does_not_wait_for_the_running_step(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p", limits=SLOW), town.add("d", "pd")
        start(town, p, d)
        busy = AttemptId("busy", 1)
        engine_run = d._runner.run

        async def run(work: Sequence[RowWork], told: OnSubmitted) -> LandedStep:
            await asyncio.sleep(5.0)
            return await engine_run(work, told)

        monkeypatch.setattr(d._runner, "run", run)
        town.router.assign(busy, PROMPT, prefill=d, decode=d, params=PARAMS)
        await asyncio.sleep(0.03)
        await town.kill(p)
        judge(town, d, p.context.epoch)
        await town.router.wait_for(lambda: "DEAD" in town.router.kinds(A, DECODE), within_s=0.01)
        town.router.cancel(busy, d)
        await town.settle(10.0)

    play(scene)


@pytest.mark.parametrize("delay_s", [0.001, 0.01, 0.03, 0.06, 0.1])
def test_retarget_sends_the_same_pages_elsewhere_without_computing_again(
    play: Play, delay_s: float
) -> None:
    async def scene(town: WorkerCluster) -> None:
        p = town.add("p", "p", limits=SLOW)
        d1, d2 = town.add("d1", "d"), town.add("d2", "d")
        del town.workers["d1"]  # p cannot reach it: never granted
        town.lives["d1"].cancel()
        start(town, p, d1)
        await asyncio.sleep(delay_s)
        assign_decode(town, A2, p, d2)
        retarget(town, p, d2)
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(A2, DECODE))
        assert town.router.kinds(A, PREFILL) == ["RETARGETED"]
        assert town.router.kinds(A2, PREFILL) == ["HANDED_OVER"]
        merged = [*town.router.tokens[A], *town.router.tokens[A2]]
        town.router.tokens[A2] = merged
        assert town.router.answer(A2) == ANSWER
        assert isinstance(p.context.engine, FakeEngine)
        assert p.context.engine.steps == 500 // 32 + 1, "nothing was computed twice"
        await town.settle(3.0)

    play(scene)


async def decode_dies_amid_the_transfer(town: WorkerCluster) -> tuple[Worker, Worker, Worker]:
    """The pages of A were on their way to d1; p has just been told of d2. Returns p, d1, d2."""
    p = town.add("p", "p", limits=SLOW)
    d1, d2 = town.add("d1", "d"), town.add("d2", "d")
    start(town, p, d1)
    await asyncio.sleep(0.03)
    await town.kill(d1)
    assign_decode(town, A2, p, d2)
    retarget(town, p, d2)
    return p, d1, d2


def test_repeated_retarget_is_answered_again_after_the_stream_was_reset(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d1, d2 = await decode_dies_amid_the_transfer(town)
        await asyncio.sleep(0.0006)  # it is there; the answer is lost
        town.router.cut(p)
        await asyncio.sleep(0.01)
        assert town.router.kinds(A, PREFILL) == []
        town.router.open(p)
        retarget(town, p, d2)
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(A2, DECODE))
        assert town.router.kinds(A, PREFILL) == ["RETARGETED"]
        assert "GONE" not in town.router.kinds(A)
        assert town.router.kinds(A2, PREFILL) == ["HANDED_OVER"], "heard by the new stream"
        assert town.router.answer(A2) == ANSWER
        retarget(town, p, d1)
        await town.router.wait_for(lambda: "GONE" in town.router.kinds(A))
        await town.settle(3.0)

    play(scene)


def test_retarget_after_decode_died_amid_the_transfer(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        await decode_dies_amid_the_transfer(town)
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(A2, DECODE))
        assert town.router.answer(A2)[1:] == ANSWER[1:]
        await town.settle(3.0)

    play(scene)


def test_retarget_of_a_row_that_was_handed_over_is_answered_gone(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d1, d2 = town.add("p", "p"), town.add("d1", "d"), town.add("d2", "d")
        start(town, p, d1)
        await town.router.wait_for(lambda: "HANDED_OVER" in town.router.kinds(A))
        retarget(town, p, d2)
        await town.router.wait_for(lambda: "GONE" in town.router.kinds(A))

    play(scene)


def test_cut_between_the_workers_heals_without_a_new_attempt(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p", limits=SLOW), town.add("d", "d")
        start(town, p, d)
        await asyncio.sleep(0.03)
        for link in town.peer_links:
            link.break_now("cut")
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(A, DECODE))
        assert town.router.answer(A) == ANSWER
        await town.settle(0.5)

    play(scene)


def test_full_reservation_queue_is_reported_and_the_row_is_placed_later(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p = town.add("p", "p")
        one_waits = DecodeConfig(receiver=ReceiverConfig(queue_limit=1))
        d = town.add("d", "d", decode=one_waits, limits=StepLimits(step_tokens=128, decode_rows=1))
        attempts = [AttemptId(f"r{i}", 1) for i in range(4)]
        for attempt in attempts:
            start(town, p, d, attempt)
        await town.router.wait_for(
            lambda: any("UNPLACED" in town.router.kinds(a, PREFILL) for a in attempts)
        )
        await town.router.wait_for(lambda: all(town.router.finish_of(a) for a in attempts))
        for attempt in attempts:
            assert town.router.answer(attempt) == ANSWER
        await town.settle(0.5)

    play(scene)


def test_prefill_stops_at_its_holding_cap_and_says_so(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p = town.add(
            "p",
            "p",
            engine=FakeEngineConfig(n_pages=200),
            prefill=PrefillConfig(holding_cap_share=0.3, unplaced_after_s=0.1),
        )
        d = town.add("d", "d", limits=StepLimits(step_tokens=128, decode_rows=1))
        block = AttemptId("block", 1)
        town.router.assign(
            block, PROMPT, prefill=p, decode=d, params=SamplingParams(max_tokens=600, seed=1)
        )
        await town.router.wait_for(lambda: "JOINED" in town.router.kinds(block))
        attempts = [AttemptId(f"r{i}", 1) for i in range(5)]
        for attempt in attempts:
            start(town, p, d, attempt)
        await asyncio.sleep(0.5)
        states = [row.state for row in p.inspect().rows]
        assert states.count("held") == 2, "two rows of 32 pages reach the cap of 60"
        assert states.count("waiting") == 3
        told = [a for a in attempts if "UNPLACED" in town.router.kinds(a, PREFILL)]
        assert len(told) == 2
        town.router.cancel(block, p, d)
        await town.router.wait_for(lambda: all(town.router.finish_of(a) for a in attempts))
        await town.settle(0.5)

    play(scene)


def test_row_that_is_being_taken_is_not_reported_at_the_holding_cap(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        cap = PrefillConfig(holding_cap_share=0.1, unplaced_after_s=0.1)
        p, d = town.add("p", "p", prefill=cap), town.add("d", "d")
        attempts = [AttemptId(f"r{i}", 1) for i in range(2)]
        for attempt in attempts:
            start(town, p, d, attempt)
            await asyncio.sleep(0.2)
        states = sorted(row.state for row in p.inspect().rows)
        assert states == ["held", "waiting"], "one row of 32 pages passes the cap of 25"
        await town.router.wait_for(lambda: all(town.router.finish_of(a) for a in attempts))
        for attempt in attempts:
            assert town.router.kinds(attempt, PREFILL) == ["HANDED_OVER"]

    play(scene, faults=Faults(delay_s=(0.4, 0.4)))


def test_launchers_word_frees_what_a_dead_writer_left_in_quarantine(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p", limits=SLOW), town.add("d", "d")
        start(town, p, d)
        await asyncio.sleep(0.03)
        await town.kill(p)
        judge(town, d, p.context.epoch)
        await asyncio.sleep(3.0)
        assert d.load().pages.quarantined > 0, "no proof yet that nobody writes there"
        gone = worker_pb2.PeerGone(epoch=p.context.epoch)
        town.router.send(d, worker_pb2.SessionRequest(peer_gone=gone))
        await town.settle(0.5)

    play(scene, sender_writes=True)


def test_late_reserve_of_a_cancelled_row_frees_the_prefill_side(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p", limits=SLOW), town.add("d", "d")
        town.router.cancel(A, d)
        start(town, p, d)
        await town.router.wait_for(lambda: "DEAD" in town.router.kinds(A, PREFILL), within_s=1.0)
        await town.settle(0.5)

    play(scene)


def test_draining_pair_finishes_its_rows(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p", limits=SLOW), town.add("d", "d")
        start(town, p, d)
        await asyncio.sleep(0.03)
        for worker in (p, d):
            drain = worker_pb2.SessionRequest(drain=drain_pb2.Drain(enabled=True))
            town.router.send(worker, drain)
        await asyncio.sleep(0.001)
        assert not p.is_drained
        await p.wait_drained()
        await d.wait_drained()
        await town.router.wait_for(lambda: bool(town.router.finish_of(A)))
        assert town.router.answer(A) == ANSWER
        await town.settle(0.5)

    play(scene)
