"""An operator asks one router and sees all of them."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.router.doors.two_routers import two_routers
from tests.until import until
from twolane.router.doors import peer_calls
from twolane.router.router import Router
from twolane.router.testing.client import ask, message
from twolane.rpc.log_tail import LOG_TAIL
from twolane.v1 import acts_pb2, admin_pb2, cluster_pb2, worker_pb2

CODE = grpc.StatusCode
SECRETS = [911, 412, 813, 214, 615]  # token ids of a prompt
ENOUGH_S = 30.0


async def running(router: Router, request_id: str) -> asyncio.Task[Any]:
    """A request that has tokens and goes on for long."""
    await until(router.can_serve)
    task = asyncio.create_task(
        ask(router, message(SECRETS, request_id=request_id, max_tokens=1900))
    )
    await until(
        lambda: any(
            status.request_id == request_id and status.output_tokens >= 10
            for status in router.status().requests
        )
    )
    return task


@contextmanager
def silent_router() -> Any:
    """The address of a router that takes calls and says nothing."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        port = deaf.getsockname()[1]
        yield worker_pb2.RouterAddress(
            router_id="router-9", router_epoch=9, workers_endpoint=f"127.0.0.1:{port}"
        )


async def test_requests_of_all_routers_are_one_list_and_one_is_found_wherever_it_is(
    tmp_path: Path,
) -> None:
    async with two_routers(tmp_path) as two:
        tasks = [await running(two.first.router, "a"), await running(two.second.router, "b")]
        two.introduce()
        first = await two.admin.ListRequests(admin_pb2.ListRequestsRequest(page_size=1))
        assert [(s.request_id, s.router_id) for s in first.requests] == [("a", "router-0")]
        assert first.total == 2
        second = await two.admin.ListRequests(
            admin_pb2.ListRequestsRequest(page_size=1, page_token=first.next_page_token)
        )
        assert [(s.request_id, s.router_id) for s in second.requests] == [("b", "router-1")]
        assert not second.next_page_token
        found = await two.admin.GetRequest(admin_pb2.GetRequestRequest(id="b"))
        assert found.trace.request.decode_worker == "d1"
        assert [span.name for span in found.trace.spans if span.open] == ["decode"]
        name = second.requests[0].submission_id
        await two.admin.CancelRequest(admin_pb2.CancelRequestRequest(submission_id=name))
        assert (await tasks[1]).error is not None
        two.first.router.operations.cancel_request(first.requests[0].submission_id)
        await tasks[0]
        ended = await two.admin.ListRequests(admin_pb2.ListRequestsRequest(ended=True))
        assert {s.request_id: s.finish for s in ended.requests} == {
            "a": "cancelled",
            "b": "cancelled",
        }


async def test_no_look_has_anything_of_a_prompt_or_an_answer(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as two:
        task = await running(two.first.router, "a")
        looks = [
            await two.admin.GetClusterStatus(cluster_pb2.GetClusterStatusRequest()),
            await two.admin.ListRequests(admin_pb2.ListRequestsRequest()),
            await two.admin.GetRequest(admin_pb2.GetRequestRequest(id="a")),
            await two.admin.GetPages(admin_pb2.GetPagesRequest(check=True)),
            await two.admin.ListEvents(admin_pb2.ListEventsRequest()),
        ]
        two.first.router.cancel("a")
        outcome = await task
        assert len(outcome.tokens) > 3
        for token_ids in (SECRETS, outcome.tokens[:5], outcome.tokens[-5:]):
            packed = worker_pb2.Assign(token_ids=token_ids).SerializeToString()[2:]
            assert not [look for look in looks if packed in look.SerializeToString()]


async def test_a_router_that_does_not_answer_is_named_and_waited_for_two_seconds(
    tmp_path: Path,
) -> None:
    async with two_routers(tmp_path, within_s=peer_calls.LOOK_S) as two:
        with silent_router() as address:
            two.introduce(address)
            began = asyncio.get_running_loop().time()
            page, status = await asyncio.gather(
                two.admin.ListRequests(admin_pb2.ListRequestsRequest()),
                two.admin.GetClusterStatus(cluster_pb2.GetClusterStatusRequest()),
            )
            took_s = asyncio.get_running_loop().time() - began
            assert [r.address.router_id for r in page.unreached] == ["router-9"]
            assert page.unreached[0].unreached
            assert took_s < ENOUGH_S
            assert [r.address.router_id for r in status.routers if r.unreached] == ["router-9"]


async def test_a_status_without_requests_has_their_numbers(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as two:
        task = await running(two.second.router, "b")
        two.introduce()
        asked = cluster_pb2.GetClusterStatusRequest(without_requests=True)
        status = await two.admin.GetClusterStatus(asked)
        assert (len(status.requests), dict(status.requests_by_state)) == (0, {"running": 1})
        two.second.router.cancel("b")
        await task


async def test_events_of_both_routers_come_in_order_and_are_watched(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as two:
        await until(two.first.router.can_serve)
        await until(two.second.router.can_serve)
        two.introduce()
        page = await two.admin.ListEvents(admin_pb2.ListEventsRequest())
        assert [event.at for event in page.events] == sorted(event.at for event in page.events)
        kinds = {(event.kind, event.subject) for event in page.events}
        assert {("worker.alive", "d0"), ("worker.alive", "d1"), ("router.up", "router-1")} <= kinds
        watching = two.admin.WatchEvents(
            admin_pb2.WatchEventsRequest(past=admin_pb2.ListEventsRequest(kinds=["act"]))
        )
        assert not (await watching.read()).events
        await two.admin.DrainWorker(cluster_pb2.DrainWorkerRequest(worker_id="d0"))
        two.second.router.operations.events.take_in(  # as a controller tells of one, late
            [cluster_pb2.ClusterEvent(id="c-1", at=time.time() - 4.0, kind="act.other")]
        )
        seen: list[str] = []
        async with asyncio.timeout(ENOUGH_S):
            while len(seen) < 2:
                two.introduce()
                seen += [event.kind for event in (await watching.read()).events]
        assert sorted(seen) == ["act.drain", "act.other"]
        watching.cancel()


async def test_an_act_is_done_once_and_leaves_an_event_with_who_before_and_after(
    tmp_path: Path,
) -> None:
    async with two_routers(tmp_path) as two:
        await until(two.first.router.can_serve)
        act = acts_pb2.Act(request_id="r-1", reason="a new disk")
        drain = cluster_pb2.DrainWorkerRequest(worker_id="d0", act=act)
        done = await two.admin.DrainWorker(drain)
        (change,) = done.response.changes
        assert (change.subject, change.before, change.after) == ("d0", "alive", "draining")
        assert await two.admin.DrainWorker(drain) == done
        (event,) = two.first.router.operations.events.page(
            admin_pb2.ListEventsRequest(audit=True)
        ).events
        audit = event.audit
        assert (audit.who, audit.what, audit.reason) == ("operator", "drain", "a new disk")
        assert (audit.before, audit.after, event.subject) == ("alive", "draining", "d0")
        drain.worker_id = "p0"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await two.admin.DrainWorker(drain)
        assert caught.value.code() is CODE.INVALID_ARGUMENT
        assert "another act" in str(caught.value.details())


async def test_a_dry_run_changes_nothing_and_a_refused_act_is_audited(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as two:
        task = await running(two.first.router, "a")
        (status,) = two.first.router.status().requests
        dry = acts_pb2.Act(dry_run=True)
        would = await two.admin.CancelRequest(
            admin_pb2.CancelRequestRequest(act=dry, submission_id=status.submission_id)
        )
        assert [change.after for change in would.changes] == ["cancelled"]
        await two.admin.DrainWorker(cluster_pb2.DrainWorkerRequest(worker_id="d0", act=dry))
        assert two.first.router.operations.member("d0").wish is None
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await two.admin.DrainWorker(
                cluster_pb2.DrainWorkerRequest(worker_id="d0", expect_epoch=1)
            )
        assert caught.value.code() is CODE.FAILED_PRECONDITION
        (event,) = two.first.router.operations.events.page(
            admin_pb2.ListEventsRequest(audit=True)
        ).events
        assert event.audit.refused
        assert "refused" in event.text
        two.first.router.cancel("a")
        await task


async def test_pages_of_a_worker_that_does_not_answer_are_what_it_reported_and_say_why(
    tmp_path: Path,
) -> None:
    async with two_routers(tmp_path) as two:  # these workers have no Inspect
        await until(two.first.router.can_serve)
        two.introduce()
        pages = await two.admin.GetPages(admin_pb2.GetPagesRequest(check=True))
        assert [its.worker.worker_id for its in pages.workers] == ["d0", "p0"]
        assert all(its.unreached and its.total == 256 for its in pages.workers)
        assert {r.router_id: r.error for r in pages.routers} == {"router-0": "", "router-1": ""}


async def test_broken_tables_of_another_router_are_told(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as two:
        task = await running(two.second.router, "b")
        two.introduce()
        board = two.second.router._dispatcher.board
        board.labels.clear()
        pages = await two.admin.GetPages(admin_pb2.GetPagesRequest(check=True))
        errors = {r.router_id: r.error for r in pages.routers}
        assert errors["router-0"] == ""
        assert "labels" in errors["router-1"]
        (request,) = board.requests.values()
        board.labels[request.job.label] = request.job.submission_id
        two.second.router.cancel("b")
        await task


async def test_the_log_of_any_router_is_read_at_any_and_of_a_silent_worker_it_is_told(
    tmp_path: Path,
) -> None:
    log = logging.getLogger("twolane.test")
    log.addHandler(LOG_TAIL)
    try:
        async with two_routers(tmp_path) as two:
            log.warning("a line of the log")
            for name in ("router-0", "router-1"):
                found = await two.admin.ReadLog(acts_pb2.ReadLogRequest(name=name, lines=9))
                assert any(line.endswith("a line of the log") for line in found.lines)
                process, epoch = found.source.split()
                assert process == name
                assert int(epoch, 16)
                asked = acts_pb2.ReadLogRequest(
                    name=name, lines=9, after_line=found.last_line, source=found.source
                )
                assert not (await two.admin.ReadLog(asked)).lines
                asked.source = f"{name} 1"  # of another incarnation, whose lines were others
                assert (await two.admin.ReadLog(asked)).lines
            for name, code in (("d0", CODE.UNAVAILABLE), ("nobody", CODE.INVALID_ARGUMENT)):
                call = two.admin.ReadLog(acts_pb2.ReadLogRequest(name=name))
                assert await call.code() is code
            call = two.admin.ReadLog(acts_pb2.ReadLogRequest(name="d0", lines=2001))
            assert await call.code() is CODE.INVALID_ARGUMENT
    finally:
        log.removeHandler(LOG_TAIL)


async def test_the_log_of_a_worker_that_does_not_answer_is_read_from_its_file(
    tmp_path: Path,
) -> None:
    async with two_routers(tmp_path) as two:
        mail = two.first.router.operations.controllers

        async def control() -> None:
            """As a controller: it knows the files of two processes."""
            while True:
                for act in mail.acts():
                    result = acts_pb2.ControllerActResult(number=act.number)
                    if act.read_log.name in ("d0", "ended"):
                        result.log.lines.append(f"of {act.read_log.name}")
                        result.log.source = "the launcher"
                    elif act.read_log.name == "broken":
                        result.code, result.error = 13, "KeyError: 'broken'"
                    else:
                        result.code, result.error = 9, "the folder has no such log"
                    mail.take_in([result])
                await asyncio.sleep(0.01)

        two.note_controller()
        controlling = asyncio.create_task(control())
        for name in ("d0", "ended"):
            found = await two.admin.ReadLog(acts_pb2.ReadLogRequest(name=name))
            assert (list(found.lines), found.source) == ([f"of {name}"], "the launcher")
        call = two.admin.ReadLog(acts_pb2.ReadLogRequest(name="nobody"))
        assert await call.code() is CODE.INVALID_ARGUMENT
        assert "the folder has no such log" in await call.details()
        call = two.admin.ReadLog(acts_pb2.ReadLogRequest(name="broken"))
        assert await call.code() is CODE.INTERNAL, "the controller's fault is not the caller's"
        call = two.admin.ReadLog(acts_pb2.ReadLogRequest(name="router-0", from_file=True))
        assert await call.code() is CODE.INVALID_ARGUMENT, "its own lines are not the file"
        controlling.cancel()


async def test_a_worker_that_leaves_is_another_kind_of_event_than_one_that_is_lost(
    tmp_path: Path,
) -> None:
    async with two_routers(tmp_path) as two:
        router = two.first.router
        await until(router.can_serve)
        for name in ("d0", "p0"):
            member = router.operations.member(name)
            if name == "d0":
                address = member.announce.worker
                router.announce(cluster_pb2.AnnounceRequest(worker=address, leaving=True))
            else:
                router.operations.report_gone(member.epoch)
        page = router.operations.events.page(admin_pb2.ListEventsRequest(kinds=["worker"]))
        kinds = {event.subject: event.kind for event in page.events}
        assert (kinds["d0"], kinds["p0"]) == ("worker.left", "worker.gone")
