"""Guards of attempts at the router, each alone: take it away and the test of its name fails."""

from __future__ import annotations

import asyncio

from tests.until import until
from twolane.router.config import AdmissionConfig, RouterConfig
from twolane.router.requests.attempt import AttemptState
from twolane.router.router import Router
from twolane.router.testing.client import ask, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import expected_answer
from twolane.router.testing.scenario import PROMPT, counters
from twolane.v1 import worker_pb2

PAIR = ("p0", "d0")
JOINED, GONE = worker_pb2.RowEvent.KIND_JOINED, worker_pb2.RowEvent.KIND_GONE


def test_prompt_is_off_its_workers_backlog_with_the_first_token() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        prefill, board = cluster.workers["p0"], router._dispatcher.board
        cluster.workers["d0"].is_full = True  # no second token
        running = asyncio.create_task(ask(router, message(PROMPT, max_tokens=9)))
        await until(
            lambda: any(len(r.answer.tokens) == 1 for r in board.requests.values()), every_s=0.001
        )
        assert board.tally.of(prefill.epoch).backlog_tokens == 0
        cluster.workers["d0"].is_full = False
        assert (await running).tokens == expected_answer(PROMPT, 9)

    play(script, PAIR)


def test_row_takes_one_page_more_when_it_outgrows_what_was_promised_and_none_before() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        decode, board = cluster.workers["d0"], router._dispatcher.board
        running = asyncio.create_task(ask(router, message(PROMPT, max_tokens=30)))
        pages = dict[int, int]()
        while not running.done():
            await asyncio.sleep(0.001)
            for request in board.requests.values():
                pages[len(request.answer.tokens)] = board.tally.of(decode.epoch).pages
        assert pages[12] == 1, "4 tokens of the prompt and 12 of growth"
        assert pages[13] == 2
        assert pages[28] == 2
        assert pages[29] == 3

    admission = AdmissionConfig(growth_reserve_tokens=12)
    play(script, PAIR, config=RouterConfig(admission=admission))


def test_news_of_requests_that_are_not_here_or_not_placed_are_dropped_and_counted() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.workers["d0"].kill()
        await asyncio.sleep(0.1)
        running = asyncio.create_task(ask(router, message(PROMPT, max_tokens=9)))
        await asyncio.sleep(0.1)
        (request,) = router._dispatcher.board.requests.values()
        assert request.attempt is None, "nobody decodes"

        def tell(submission_id: str, kind: worker_pb2.RowEvent.Kind) -> None:
            key = worker_pb2.AttemptKey(submission_id=submission_id, attempt=1)
            said = worker_pb2.SessionResponse(rows=[worker_pb2.RowEvent(key=key, kind=kind)])
            router.session_message(cluster.workers["p0"].epoch, said)

        tell("nobody", JOINED)
        tell("nobody", GONE)  # what a cancelled row may say
        assert counters(router)["dropped.unknown_request"] == 1
        tell(request.job.submission_id, JOINED)
        assert counters(router)["dropped.old_attempt"] == 1
        cluster.start_worker("d0")
        assert (await running).tokens == expected_answer(PROMPT, 9)

    play(script, PAIR)


def test_request_waits_until_what_it_asked_for_again_is_late() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        recovery, now = router._dispatcher._recovery, asyncio.get_running_loop().time
        running = asyncio.create_task(ask(router, message(PROMPT, max_tokens=30)))
        await asyncio.sleep(0.1)
        (request,) = router._dispatcher.board.requests.values()
        attempt = request.attempt
        assert attempt is not None
        assert (attempt.gap_due, attempt.due) == (None, None)
        recovery.tick(request, now())  # looked at though nothing is due
        attempt.gap_due = attempt.due = now() + 1.0
        recovery.tick(request, now())
        assert request.attempt is attempt
        attempt.gap_due = attempt.due = None
        assert (await running).tokens == expected_answer(PROMPT, 30)

    play(script, PAIR)


def test_unplaced_said_again_does_not_put_off_the_move_nor_the_judge() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        recovery, now = router._dispatcher._recovery, asyncio.get_running_loop().time()
        cluster.workers["d0"].is_full = True
        running = asyncio.create_task(ask(router, message(PROMPT, max_tokens=9)))
        await asyncio.sleep(0.01)
        (request,) = router._dispatcher.board.requests.values()
        attempt = request.attempt
        assert attempt is not None
        recovery.unplaced(request, now)
        due = attempt.due
        recovery.unplaced(request, now + 0.01)
        assert attempt.due == due
        attempt.wants_move, attempt.due = False, now + 9.0
        attempt.life.advance(AttemptState.JUDGING)
        recovery.unplaced(request, now)
        assert attempt.due == now + 9.0
        assert router.cancel_submission(request.job.submission_id)
        await running

    play(script, PAIR)
