"""What a controller tells holds until it tells something else, whoever else calls."""

from __future__ import annotations

import asyncio

from twolane.router.operators.controller_mail import FRESH_S
from twolane.router.router import Router
from twolane.router.testing.client import play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.v1 import acts_pb2, admin_pb2, cluster_pb2

KILL = acts_pb2.ControllerAct(kill=acts_pb2.KillWorkerRequest(worker_id="d0"))


def report(controller_id: str, term: int, pool: str) -> cluster_pb2.SuperviseRequest:
    return cluster_pb2.SuperviseRequest(
        controller_id=controller_id,
        term=term,
        hosts=[cluster_pb2.HostStatus(name="node-a", state="up")],
        pools=[cluster_pb2.PoolStatus(pool=pool)],
        counters={f"failed_starts.{pool}": 1},
        scaler=cluster_pb2.ScalerStatus(mode="on", wakes=True),
    )


def told(router: Router) -> tuple[list[str], list[str], list[str], str, bool]:
    status = router.status()
    return (
        [its.name for its in status.hosts],
        [its.pool for its in status.pools],
        [*status.controller_counters],
        status.scaler.mode,
        router._dispatcher.board.wakes(),
    )


def kinds(router: Router) -> list[str]:
    page = router.operations.events.page(admin_pb2.ListEventsRequest())
    return [event.kind for event in page.events]


def test_a_call_that_is_no_controllers_changes_nothing_and_takes_no_act() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        operations = router.operations
        operations.supervise(report("c", 1, "decode"))
        before = told(router)
        assert before == (["node-a"], ["decode"], ["failed_starts.decode"], "on", True)
        asking = asyncio.create_task(operations.controllers.ask(KILL, 60.0, operations._clock()))
        await asyncio.sleep(0)
        seen = operations.supervise(cluster_pb2.SuperviseRequest())
        assert {its.worker.worker_id for its in seen.workers} == {"p0", "d0"}
        assert not seen.acts
        assert told(router) == before
        assert len(operations.supervise(report("c", 1, "decode")).acts) == 1
        assert kinds(router).count("host.up") == 1, "the host was up all the time"
        asking.cancel()

    play(script)


def test_a_controller_of_a_lower_term_is_not_obeyed_while_that_of_a_higher_one_is_heard() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        operations = router.operations
        asking = asyncio.create_task(_kill(router))
        old, new = report("c1", 1, "old"), report("c2", 2, "new")
        operations.supervise(old)
        await asyncio.sleep(0)
        (act,) = operations.supervise(old).acts
        operations.supervise(new)
        old.results.append(acts_pb2.ControllerActResult(number=act.number, error="done by c1"))
        old.events.append(cluster_pb2.ClusterEvent(id="c1-7", kind="worker.restarted"))
        other = asyncio.create_task(_kill(router))
        await asyncio.sleep(0)
        assert not operations.supervise(old).acts
        assert told(router)[1] == ["new"]
        assert [its.controller_id for its in router.status().controllers] == ["c1", "c2"]
        assert (await asking).error == "done by c1", "what it has done is done"
        assert "worker.restarted" in kinds(router)
        await asyncio.sleep(FRESH_S + 0.1)
        assert len(operations.supervise(old).acts) == 1, "the other one is gone"
        assert told(router)[1] == ["old"]
        other.cancel()

    play(script)


async def _kill(router: Router) -> acts_pb2.ControllerActResult:
    operations = router.operations
    return await operations.controllers.ask(KILL, 60.0, operations._clock())
