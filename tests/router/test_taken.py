"""A worker says that another router has a request: this one ends its part, and touches no row."""

from __future__ import annotations

import asyncio

from twolane.errors import TakenOverError
from twolane.router.dispatch.endings import LET_GO_S
from twolane.router.router import Router
from twolane.router.testing.client import ask, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.scenario import counters
from twolane.v1 import worker_pb2


def test_request_that_another_router_has_taken_ends_and_its_rows_are_left_to_that_router() -> None:
    """Until that router has surely adopted what it can reach: a worker drops the cancel then."""

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        running = asyncio.create_task(ask(router, message([5, 6, 7], max_tokens=1500)))
        await asyncio.sleep(0.1)
        (request,) = router._dispatcher.board.requests.values()
        assert request.attempt is not None
        taken = worker_pb2.RowEvent(key=request.attempt.key, kind=worker_pb2.RowEvent.KIND_TAKEN)
        said = worker_pb2.SessionResponse(rows=[taken])
        router.session_message(cluster.workers["p0"].epoch, said)
        assert isinstance((await running).error, TakenOverError)
        await asyncio.sleep(LET_GO_S / 2)
        assert not any(told(worker, "cancel") for worker in cluster.workers.values())
        await asyncio.sleep(LET_GO_S)
        assert all(told(worker, "cancel") for worker in cluster.workers.values())
        assert counters(router)["taken"] == 1

    def told(worker: object, command: str) -> bool:
        commands: list[worker_pb2.SessionRequest] = worker.commands  # type: ignore[attr-defined]
        return any(request.WhichOneof("command") == command for request in commands)

    play(script)


def test_request_that_waits_for_its_next_attempt_ends_too_when_it_is_taken() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        running = asyncio.create_task(ask(router, message([5, 6, 7], max_tokens=1500)))
        await asyncio.sleep(0.1)
        ((name, request),) = router._dispatcher.board.requests.items()
        key = worker_pb2.AttemptKey(submission_id=name, attempt=1)
        for worker_id in ("p0", "d0"):
            cluster.workers[worker_id].kill()
        await asyncio.sleep(0.2)
        assert request.attempt is None, "it waits"
        d1 = cluster.start_worker("d1")
        await asyncio.sleep(0.2)
        taken = worker_pb2.RowEvent(key=key, kind=worker_pb2.RowEvent.KIND_TAKEN)
        router.session_message(d1.epoch, worker_pb2.SessionResponse(rows=[taken]))
        assert isinstance((await running).error, TakenOverError)

    play(script)
