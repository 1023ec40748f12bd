"""An operator kills and fences workers, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.deploy.launch.controlled import START_S, Controller, World, changes, play
from twolane.deploy.process.handshake import Handle
from twolane.v1 import acts_pb2, worker_pb2


def test_a_killed_worker_does_not_come_back() -> None:
    async def story(world: World, controller: Controller) -> None:
        await controller.scale(decode=2)
        await asyncio.sleep(START_S + 2)
        epoch = world.workers["decode-1"].handle.epoch
        wrong = acts_pb2.KillWorkerRequest(worker_id="decode-1", expect_epoch=epoch + 1)
        assert "was started again" in (await controller.do(kill=wrong)).error
        right = acts_pb2.KillWorkerRequest(worker_id="decode-1", expect_epoch=epoch)
        result = await controller.do(kill=right)
        assert result.response.proof == "decode-1 killed"
        await asyncio.sleep(100)
        assert sorted(world.workers) == ["decode-0", "prefill-0"]
        await controller.do(
            scale=acts_pb2.ScalePoolsRequest(pools=[acts_pb2.PoolSize(pool="decode", workers=2)])
        )
        await asyncio.sleep(START_S + 2)
        assert "decode-1" in world.workers

    play(story)


@pytest.mark.parametrize("what", ["kill", "fence", "flip"])
def test_act_on_another_incarnation_is_refused_before_anything_is_done(what: str) -> None:
    def on(epoch: int) -> dict[str, Any]:
        name, fences = "decode-0", what == "fence"
        if what == "flip":
            return {"flip": acts_pb2.FlipWorkerRequest(worker_id=name, expect_epoch=epoch)}
        kill = acts_pb2.KillWorkerRequest(worker_id=name, expect_epoch=epoch, may_restart=fences)
        return {"kill": kill}

    async def story(world: World, controller: Controller) -> None:
        await controller.scale(decode=2)
        for worker in world.workers.values():
            worker.member.load.able[:] = [worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE]
        await asyncio.sleep(START_S + 2)
        before, epoch = controller.pools.desired, world.workers["decode-0"].handle.epoch
        refused = await controller.do(**on(epoch + 1))
        assert refused.code == 9
        assert refused.error == (
            f"decode-0 was started again: its epoch is {epoch:016x}, not {epoch + 1:016x}"
        )
        assert controller.pools.desired is before
        assert world.ended == []
        assert changes(await controller.do(**on(epoch))), "the right epoch is not refused"

    play(story)


def test_a_kill_without_proof_says_why_and_holds_the_seat() -> None:
    async def story(world: World, controller: Controller) -> None:
        host = world.workers["decode-0"].host
        world.silent.add(host)
        await asyncio.sleep(2)
        result = await controller.do(kill=acts_pb2.KillWorkerRequest(worker_id="decode-0"))
        assert result.response.not_proven == "silent; no fence command"
        await asyncio.sleep(60)
        assert "decode-0" in world.workers
        assert controller.pools.desired.seat("decode-0") is not None
        world.silent.clear()
        await asyncio.sleep(2)
        assert "decode-0" not in world.workers
        assert controller.pools.desired.seat("decode-0") is None

    play(story)


def test_a_kill_that_never_ends_is_answered_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World, controller: Controller) -> None:
        async def hangs(handle: Handle) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(world, "fence", hangs)
        monkeypatch.setattr("twolane.deploy.launch.operator_acts._ENDED_WITHIN_S", 20.0)
        async with asyncio.timeout(21):
            request = acts_pb2.KillWorkerRequest(worker_id="decode-0")
            result = await controller.do(kill=request)
        assert result.response.not_proven == "decode-0 has not ended in 20 s; it is still to go"
        assert "decode-0" in world.workers

    play(story)


def fence(request_id: str, epoch: int = 0) -> acts_pb2.KillWorkerRequest:
    act = acts_pb2.Act(request_id=request_id)
    return acts_pb2.KillWorkerRequest(
        act=act, worker_id="decode-0", expect_epoch=epoch, may_restart=True
    )


def test_a_fence_that_comes_again_under_its_id_kills_no_later_incarnation() -> None:
    async def story(world: World, controller: Controller) -> None:
        first = world.workers["decode-0"].handle.epoch
        result = await controller.do(kill=fence("f1", first))
        assert result.response.proof == "decode-0 killed (proof of class A)"
        await asyncio.sleep(START_S + 2)
        second = world.workers["decode-0"].handle.epoch
        assert second != first
        again = await controller.do(kill=fence("f1", first))
        assert again == result
        assert "was started again" in (await controller.do(kill=fence("f2", first))).error
        await controller.die()
        after = Controller(world)  # whoever takes over knows it, too
        await asyncio.sleep(2)
        taken_over = await after.do(kill=fence("f1", first))
        assert taken_over.response.proof == result.response.proof
        await asyncio.sleep(60)
        assert world.ended == [("decode-0", "killed")]
        assert world.workers["decode-0"].handle.epoch == second
        await after.die()

    play(story)


def test_a_fence_without_proof_is_tried_again_on_the_same_incarnation_alone() -> None:
    async def story(world: World, controller: Controller) -> None:
        worker = world.workers["decode-0"]
        world.silent.add(worker.host)
        result = await controller.do(kill=fence("f1"))
        assert result.response.not_proven == "silent; no fence command"
        assert (await controller.do(kill=fence("f1"))) == result
        world.silent.clear()
        assert (await controller.do(kill=fence("f1"))).response.proof_class == "A"
        await asyncio.sleep(START_S / 2)  # it starts again
        nobody = await controller.do(kill=fence("f2"))
        why = "this controller knows of no decode-0 that runs: nothing is killed, or proven"
        assert nobody.error == why
        await asyncio.sleep(START_S + 2)
        await controller.do(kill=fence("f3"))
        assert world.ended == [("decode-0", "killed")] * 2

    play(story)
