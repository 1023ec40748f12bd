"""An act runs to its end without its caller, and no longer than its router."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.router.doors.two_routers import two_routers
from tests.until import until
from twolane.router.doors.admin.audited_acts import AuditedActs
from twolane.router.operators.event_log import EventLog
from twolane.security.identity import ANONYMOUS
from twolane.v1 import acts_pb2, admin_pb2


class AnyGate:
    def identity(self, context: Any) -> Any:
        return ANONYMOUS


@pytest.fixture
def events() -> EventLog:
    return EventLog("router-0")


@pytest.fixture
def acts(events: EventLog) -> AuditedActs:
    gate: Any = AnyGate()
    return AuditedActs(events, gate)


async def begin(acts: AuditedActs, work: Any) -> None:
    """The caller disconnects once the act runs."""
    act = acts_pb2.Act(reason="a test")
    caller = asyncio.create_task(acts.do(None, "drain", "d0", act, work))
    for _ in range(3):
        await asyncio.sleep(0)
    caller.cancel()
    with suppress(asyncio.CancelledError):
        await caller


async def test_an_act_that_nothing_else_refers_to_runs_to_its_end(
    acts: AuditedActs, events: EventLog
) -> None:
    waits: list[weakref.ref[asyncio.Future[None]]] = []

    async def work() -> acts_pb2.ActResponse:
        future = asyncio.get_running_loop().create_future()
        waits.append(weakref.ref(future))
        await future
        return acts_pb2.ActResponse()

    await begin(acts, work)
    gc.collect()
    future = waits[0]()
    assert future is not None, "the task was collected"
    future.set_result(None)
    for _ in range(3):
        await asyncio.sleep(0)
    (event,) = events.page(admin_pb2.ListEventsRequest()).events
    assert event.kind == "act.drain"


@pytest.mark.parametrize("error", [None, RuntimeError("a bug")])
async def test_a_stop_ends_acts_and_reads_their_results(
    acts: AuditedActs, error: Exception | None
) -> None:
    has_ended = False

    async def work() -> acts_pb2.ActResponse:
        nonlocal has_ended
        try:
            await asyncio.Event().wait()
        finally:
            has_ended = True
            if error is not None:
                raise error
        return acts_pb2.ActResponse()

    await begin(acts, work)
    await acts.stop()
    assert has_ended


async def test_a_router_that_stops_leaves_no_act_behind(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as two:
        two.note_controller()
        call = two.admin.KillWorker(acts_pb2.KillWorkerRequest(worker_id="d0"))
        await until(two.first.router.operations.controllers.acts, "it waits for the controller")
        call.cancel()
    left = [task.get_name() for task in asyncio.all_tasks()]
    assert not [name for name in left if name.startswith("act-")]
