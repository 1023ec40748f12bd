"""What an operator learns of requests, at one router, under virtual time."""

from __future__ import annotations

import asyncio

import pytest

from twolane.errors import InvalidParameterError
from twolane.router.config import RouterConfig
from twolane.router.requests.journal import MOST_FIRST, MOST_LAST, Journal, Mark
from twolane.router.router import Router
from twolane.router.testing.client import ask, client_of, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.v1 import admin_pb2

PROMPT = [1, 2, 3, 4, 5]


def trace_of(router: Router, name: str) -> admin_pb2.RequestTrace:
    return router.operations.requests.find(admin_pb2.GetRequestRequest(id=name)).trace


def page(router: Router, **wanted: object) -> admin_pb2.ListRequestsResponse:
    return router.operations.requests.page(admin_pb2.ListRequestsRequest(**wanted))  # type: ignore[arg-type]


def test_a_request_is_followed_through_queue_prefill_transfer_and_decode() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        await ask(router, message(PROMPT, request_id="mine", max_tokens=20))
        trace = trace_of(router, "mine")
        names = [(span.name, span.where) for span in trace.spans if span.name[-4:] != "wait"]
        assert names == [("prefill", "p0"), ("transfer", "p0 > d0"), ("decode", "d0")]
        ends = [span.end_s for span in trace.spans]
        assert ends == sorted(ends)
        pairs = zip(trace.spans, trace.spans[1:], strict=False)
        assert all(one.end_s <= other.start_s + 1e-9 for one, other in pairs)
        assert ends[-1] == pytest.approx(trace.ledger.total_s)
        assert [mark.what for mark in trace.marks] == ["placed", "first token", "joined", "ended"]
        assert (trace.request.finish, trace.request.state) == ("length", "finished")

    play(script)


def test_a_trace_that_goes_on_is_open_at_its_end() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        asking = asyncio.create_task(ask(router, message(PROMPT, request_id="x", max_tokens=500)))
        await asyncio.sleep(0.5)
        trace = trace_of(router, "x")
        assert [span.name for span in trace.spans if span.open] == ["decode"]
        assert trace.spans[-1].end_s == pytest.approx(0.5, abs=0.01)
        assert trace.ledger.output_tokens == trace.request.output_tokens > 10
        router.cancel("x")
        await asking
        assert trace_of(router, "x").error == "cancelled"

    play(script)


def test_a_lost_worker_shows_as_another_attempt_and_why() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        asking = asyncio.create_task(ask(router, message(PROMPT, request_id="x", max_tokens=90)))
        await asyncio.sleep(0.3)
        lost = trace_of(router, "x").request.decode_worker
        router.operations.report_gone(cluster.workers[lost].epoch)
        cluster.workers[lost].kill()
        assert (await asking).error is None
        trace = trace_of(router, "x")
        assert ("retry", "decode_worker_lost") in [(m.what, m.note) for m in trace.marks]
        assert {span.attempt for span in trace.spans if span.name == "decode"} == {1, 2}
        assert trace.request.decode_worker != lost

    play(script, ("p0", "d0", "d1"))


def test_requests_are_listed_oldest_first_in_pages_that_fit_together() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        asking = []
        for n in range(7):
            caller = client_of("red" if n % 2 else "blue")
            asked = message(PROMPT, request_id=f"r{n}", max_tokens=1000)
            asking.append(asyncio.create_task(ask(router, asked, caller=caller)))
            await asyncio.sleep(0.01)
        first = page(router, page_size=3)
        assert [status.request_id for status in first.requests] == ["r0", "r1", "r2"]
        assert first.total == 7
        second = page(router, page_size=3, page_token=first.next_page_token)
        third = page(router, page_size=3, page_token=second.next_page_token)
        ids = [status.request_id for status in (*second.requests, *third.requests)]
        assert (ids, third.next_page_token) == (["r3", "r4", "r5", "r6"], "")
        assert page(router, tenant="red").total == 3
        assert page(router, worker_id="d0").total == 7
        assert page(router, worker_id="d9").total == page(router, older_than_s=60).total == 0
        assert page(router, states=["queued"]).total == 0
        for status in page(router).requests:
            router.operations.cancel_request(status.submission_id)
        await asyncio.gather(*asking)
        ended = page(router, ended=True, page_size=2)
        assert [status.request_id for status in ended.requests] == ["r6", "r5"]
        assert {status.finish for status in ended.requests} == {"cancelled"}

    play(script)


@pytest.mark.parametrize("wanted", [{"page_size": 1001}, {"page_size": -1}, {"page_token": "x"}])
def test_a_page_beyond_its_bounds_is_refused(wanted: dict[str, object]) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        with pytest.raises(InvalidParameterError):
            page(router, **wanted)

    play(script)


def test_only_the_last_ended_requests_are_remembered() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        for n in range(5):
            await ask(router, message(PROMPT, request_id=f"r{n}", max_tokens=2))
        assert page(router, ended=True).total == 3
        assert not trace_of(router, "r1").spans
        assert trace_of(router, "r2").spans

    play(script, config=RouterConfig(ended_requests=3))


def test_an_id_is_found_by_its_beginning_and_one_that_runs_comes_first() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        await ask(router, message(PROMPT, request_id="same", max_tokens=2))
        (ended,) = page(router, ended=True).requests
        assert trace_of(router, ended.submission_id[:8]).request == ended
        assert not trace_of(router, ended.submission_id[:3]).spans
        asking = asyncio.create_task(ask(router, message(PROMPT, request_id="same", max_tokens=99)))
        await asyncio.sleep(0.05)
        found = router.operations.requests.find(admin_pb2.GetRequestRequest(id="same"))
        assert found.trace.request.state == "running"
        assert [status.submission_id for status in found.others] == [ended.submission_id]
        await asking

    play(script)


def test_a_journal_keeps_its_first_and_last_marks_and_counts_the_lost() -> None:
    journal = Journal()
    for n in range(MOST_FIRST + MOST_LAST + 5):
        journal.note(Mark(n, "retry"))
    kept = [mark.at for mark in journal]
    assert kept == [*range(MOST_FIRST), *range(MOST_FIRST + 5, MOST_FIRST + MOST_LAST + 5)]
    assert journal.n_lost == 5
