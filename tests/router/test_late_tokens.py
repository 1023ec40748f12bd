"""Tokens that come late, from the wrong worker, or garbled: dropped, counted, in no answer."""

from __future__ import annotations

import asyncio

from twolane.router.router import Router
from twolane.router.testing.client import ask, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import columns_of, expected_answer
from twolane.router.testing.scenario import counters
from twolane.testing.heard import HeardToken
from twolane.v1 import worker_pb2

PROMPT = [5, 6, 7, 8]
P, D = worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE


def tell(router: Router, cluster: ScriptedCluster, worker_id: str, token: HeardToken) -> None:
    tokens = columns_of([token])
    message = worker_pb2.SessionResponse(tokens=tokens)
    router.session_message(cluster.workers[worker_id].epoch, message)


def test_late_tokens_of_an_ended_request_reach_nobody() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        assert (await ask(router, message(PROMPT, max_tokens=3))).error is None
        (row,) = cluster.workers["d0"].ended.values()
        running = asyncio.create_task(ask(router, message([9], max_tokens=30)))
        await asyncio.sleep(0.1)
        for index in range(30):
            tell(router, cluster, "d0", HeardToken(D, row.assign.row, index, 1))
        assert counters(router)["dropped.unknown_row"] == 30
        assert (await running).tokens == expected_answer([9], 30)
        assert not router._dispatcher.board.rows

    play(script)


def test_tokens_of_a_worker_that_has_not_the_row_are_dropped() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        running = asyncio.create_task(ask(router, message(PROMPT, max_tokens=30)))
        await asyncio.sleep(0.1)
        (request,) = router._dispatcher.board.requests.values()
        assert request.attempt is not None
        number, n_tokens = request.attempt.row, len(request.answer.tokens)
        wrong = (("d1", D), ("d0", P), ("p0", D), ("d0", worker_pb2.ROLE_UNSPECIFIED))
        for worker_id, role in wrong:
            columns = worker_pb2.TokenColumns(
                role=role,
                rows=[number],
                first_indexes=[n_tokens],
                token_ids=[1],
            )
            said = worker_pb2.SessionResponse(tokens=[columns])
            router.session_message(cluster.workers[worker_id].epoch, said)
        assert counters(router)["dropped.old_attempt"] == 4
        assert (await running).tokens == expected_answer(PROMPT, 30)

    play(script, ("p0", "d0", "d1"))


def test_columns_that_do_not_fit_together_are_dropped_and_the_session_goes_on() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        columns = worker_pb2.TokenColumns(role=D, rows=[1, 2], first_indexes=[0], token_ids=[5])
        said = worker_pb2.SessionResponse(tokens=[columns])
        router.session_message(cluster.workers["d0"].epoch, said)
        assert counters(router)["dropped.malformed"] == 1
        assert (await ask(router, message(PROMPT, max_tokens=9))).error is None

    play(script)


def test_several_tokens_of_a_row_in_one_message_are_taken_in_order() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        answer, worker = expected_answer(PROMPT, 30), cluster.workers["d0"]
        worker.step_s = 1_000.0  # it says nothing more by itself
        running = asyncio.create_task(ask(router, message(PROMPT, max_tokens=30)))
        await asyncio.sleep(0.1)
        (row,) = worker.rows.values()
        for first, count in ((1, 4), (5, 1), (6, 23)):
            columns = worker_pb2.TokenColumns(
                role=D,
                rows=[row.assign.row],
                first_indexes=[first],
                counts=[count],
                token_ids=answer[first : first + count],
            )
            said = worker_pb2.SessionResponse(tokens=[columns])
            router.session_message(worker.epoch, said)
        row.tokens += answer[1:29]
        worker.step_s = 0.01
        worker._step(row)
        assert (await running).tokens == answer

    play(script)


def test_tokens_of_a_sample_that_nobody_asked_for_are_dropped() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        running = asyncio.create_task(ask(router, message(PROMPT, max_tokens=30)))
        await asyncio.sleep(0.1)
        (request,) = router._dispatcher.board.requests.values()
        assert request.attempt is not None
        columns = worker_pb2.TokenColumns(
            role=D,
            rows=[request.attempt.row],
            first_indexes=[len(request.answer.tokens)],
            token_ids=[1],
            samples=[2],
        )
        said = worker_pb2.SessionResponse(tokens=[columns])
        router.session_message(cluster.workers["d0"].epoch, said)
        assert counters(router)["dropped.unknown_sample"] == 1
        assert (await running).tokens == expected_answer(PROMPT, 30)

    play(script)
