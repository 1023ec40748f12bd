"""A submission passes from one router to another, and the one that had it changes nothing more."""

from __future__ import annotations

import asyncio
from hashlib import sha256

import pytest

from tests.worker.conftest import Play, WorkerCluster
from twolane.attempt_number import first_attempt
from twolane.engine.fake import expected_answer
from twolane.params import SamplingParams
from twolane.testing.heard import heard
from twolane.v1 import worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.testing import ScriptedRouter
from twolane.worker.worker import Worker

A, NEXT, THEIRS = AttemptId("r", 1), AttemptId("r", 2), AttemptId("r", first_attempt(1))
PROMPT = list(range(40))
PARAMS = SamplingParams(max_tokens=50, seed=3)
ANSWER = expected_answer(PROMPT, PARAMS, 50)
HASH = sha256(b"resume token").digest()
ADOPTED = worker_pb2.Adopted.RESULT_ADOPTED
GONE = worker_pb2.Adopted.RESULT_GONE
TAKEN = worker_pb2.Adopted.RESULT_TAKEN


def start(
    router: ScriptedRouter,
    *workers: Worker,
    attempt: AttemptId = A,
    resume_hash: bytes = HASH,
    token_ids: list[int] | None = None,
) -> None:
    """On a prefill and a decode worker, or one that is both."""
    router.assign(
        attempt,
        token_ids or PROMPT,
        prefill=workers[0],
        decode=workers[-1],
        params=PARAMS,
        n_prompt=len(PROMPT),
        request_id="order-7",
        claim=1,
        resume_hash=resume_hash,
    )


def successor(town: WorkerCluster, *workers: Worker, router_id: str = "other") -> ScriptedRouter:
    router = ScriptedRouter(town.tasks, router_id)
    for worker in workers:
        router.open(worker)
    return router


async def some_tokens(town: WorkerCluster, n: int = 10) -> None:
    await town.router.wait_for(lambda: len(town.router.tokens[A]) >= n)


def known(adopted: worker_pb2.AdoptedAttempt) -> list[int]:
    """Tokens of the answer, as a router that adopts them has them."""
    answer = dict(enumerate(adopted.assign.token_ids[adopted.assign.n_prompt :]))
    answer |= {token.index: token.token_id for token in heard(adopted.tokens)}
    return [answer[index] for index in range(len(answer))]


def test_adopter_goes_on_where_the_first_router_was_which_hears_that_it_was_taken(
    play: Play,
) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p"), town.add("d", "d")
        start(town.router, p, d)
        await some_tokens(town)
        other = successor(town, p, d)
        found = await other.find(d, "r")
        assert (found.submission_id, found.fence, len(found.attempts)) == ("r", 0, 1)
        of_label = await other.find(d, request_id="order-7")
        assert of_label.attempts == found.attempts
        answers = [await other.adopt(worker, "r", 1, HASH) for worker in (p, d)]
        assert [answer.result for answer in answers] == [ADOPTED, ADOPTED]
        (attempt,) = answers[1].attempts
        assert attempt.assign.token_ids == PROMPT
        assert known(attempt) == ANSWER[: len(known(attempt))]
        await town.router.wait_for_kind(A, "TAKEN")
        n_heard = len(town.router.tokens[A])
        other.attach(d, A, len(known(attempt)))
        await other.wait_for_kind(A, "FINISHED")
        assert known(attempt) + other.answer(A) == ANSWER
        assert len(town.router.tokens[A]) == n_heard, "the first router heard no more"
        await town.settle()
        other.close()

    play(scene)


def test_wrong_hash_another_tenant_and_no_fence_adopt_nothing(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        start(town.router, worker)
        await some_tokens(town)
        other = successor(town, worker)
        for fence, shown, tenant in (
            (1, b"wrong", ""),
            (1, HASH, "t"),
            (0, HASH, ""),
            (1, b"", ""),
        ):
            answer = await other.adopt(worker, "r", fence, shown, tenant)
            assert (answer.result, len(answer.attempts)) == (GONE, 0)
        assert (await other.adopt(worker, "q", 1, HASH)).result == GONE
        await town.router.wait_for_kind(A, "FINISHED")
        assert town.router.answer(A) == ANSWER
        assert (await other.find(worker, "q")).submission_id == ""
        assert (await other.find(worker, request_id="order-8")).submission_id == ""
        other.close()

    play(scene)


def test_row_without_a_hash_can_be_adopted_by_nobody(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        start(town.router, worker, resume_hash=b"")
        await some_tokens(town)
        other = successor(town, worker)
        assert (await other.adopt(worker, "r", 1, b"")).result == GONE
        await town.router.wait_for_kind(A, "FINISHED")
        other.close()

    play(scene)


def test_of_two_adopters_the_higher_fence_has_it_and_an_equal_one_of_another_router_not(
    play: Play,
) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        start(town.router, worker)
        await some_tokens(town)
        second, third = successor(town, worker), successor(town, worker, router_id="third")
        assert (await third.adopt(worker, "r", 2, HASH)).result == ADOPTED
        answer = await second.adopt(worker, "r", 1, HASH)
        assert (answer.result, answer.held_fence) == (TAKEN, 2)
        assert (await second.adopt(worker, "r", 2, HASH)).result == TAKEN
        assert (await third.adopt(worker, "r", 2, HASH)).result == ADOPTED, "said again"
        assert (await second.find(worker, "r")).fence == 2
        third.attach(worker, A, 0)
        await third.wait_for_kind(A, "FINISHED")
        assert third.answer(A) == ANSWER
        for router in (second, third):
            router.close()

    play(scene)


@pytest.mark.parametrize("what", ["attach", "cancel", "assign", "assign next", "retarget"])
def test_router_that_comes_back_after_a_takeover_changes_nothing(play: Play, what: str) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d, e = town.add("p", "p"), town.add("d", "d"), town.add("e", "d")
        start(town.router, p, d)
        await some_tokens(town)
        other = successor(town, p, d)
        for worker in (p, d):
            await other.adopt(worker, "r", 1, HASH)
        other.attach(d, A, 0)
        await town.router.wait_for_kind(A, "TAKEN")
        town.router.rows.clear()
        n_heard = len(town.router.tokens[A])
        if what == "attach":
            town.router.attach(d, A, 0)
        elif what == "cancel":
            town.router.cancel(A, p, d)
        elif what == "assign":
            start(town.router, p, d)
        elif what == "assign next":
            start(town.router, p, d, attempt=NEXT, token_ids=[*PROMPT, *ANSWER[:10]])
        else:
            town.router.retarget(p, A, NEXT, e.address)
        await other.wait_for_kind(A, "FINISHED")
        assert other.answer(A) == ANSWER
        assert len(town.router.tokens[A]) == n_heard
        assert not town.router.tokens[NEXT]
        if what != "cancel":
            said = town.router.kinds(A) + town.router.kinds(NEXT)
            assert {*said} == {"TAKEN"}
        assert sum(w.dropped().get("not_owner", 0) for w in (p, d)) >= 1
        assert not e.inspect().rows
        await town.settle()
        other.close()

    play(scene)


def test_new_attempt_under_a_higher_fence_ends_what_ran_under_lower_ones(play: Play) -> None:
    """The successor has never adopted here: it could not reach this worker then."""

    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        start(town.router, worker)
        await some_tokens(town)
        other = successor(town, worker)
        start(other, worker, attempt=THEIRS, token_ids=[*PROMPT, *ANSWER[:5]])
        await town.router.wait_for_kind(A, "TAKEN")
        await other.wait_for_kind(THEIRS, "FINISHED")
        assert [*ANSWER[:5], *other.answer(THEIRS)] == ANSWER
        assert len(town.router.answer(A)) < len(ANSWER)
        await town.settle()
        other.close()

    play(scene)


def test_new_attempt_of_another_token_bars_itself_whatever_its_fence(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        start(town.router, worker)
        await some_tokens(town)
        other = successor(town, worker)
        start(other, worker, attempt=THEIRS, resume_hash=b"x" * 32)
        await other.wait_for_kind(THEIRS, "TAKEN")
        await town.router.wait_for_kind(A, "FINISHED")
        assert town.router.answer(A) == ANSWER
        other.close()

    play(scene)


def test_ended_row_is_adopted_with_its_last_token_for_as_long_as_its_log_is_kept(
    play: Play,
) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        start(town.router, worker)
        await town.router.wait_for_kind(A, "FINISHED")
        other = successor(town, worker)
        (attempt,) = (await other.adopt(worker, "r", 1, HASH)).attempts
        assert attempt.has_ended
        assert known(attempt) == ANSWER
        assert heard(attempt.tokens)[-1].finish_reason
        assert attempt.events[0].HasField("figures")
        await asyncio.sleep(worker.config.sessions.grace_s + 1.0)
        assert (await other.adopt(worker, "r", 2, HASH)).result == GONE
        other.close()

    play(scene)


def test_answer_that_has_ended_is_found_by_its_label_until_another_runs_under_it(
    play: Play,
) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        start(town.router, worker)
        await town.router.wait_for_kind(A, "FINISHED")
        other = successor(town, worker)
        found = await other.find(worker, request_id="order-7")
        assert found.submission_id == "r"
        assert [attempt.has_ended for attempt in found.attempts] == [True]
        assert not (await other.find(worker, request_id="order-8")).submission_id
        assert not (await other.find(worker, tenant="acme", request_id="order-7")).submission_id
        start(town.router, worker, attempt=AttemptId("later", 1))
        await town.router.wait_for(lambda: bool(town.router.tokens[AttemptId("later", 1)]))
        assert (await other.find(worker, request_id="order-7")).submission_id == "later"
        await town.router.wait_for_kind(AttemptId("later", 1), "FINISHED")
        other.close()

    play(scene)


def test_row_that_nobody_attaches_after_its_adoption_ends_with_the_grace(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        params = SamplingParams(max_tokens=5000, seed=3)
        town.router.assign(
            A, PROMPT, prefill=worker, decode=worker, params=params, resume_hash=HASH,
            growth_tokens=10,
        )  # fmt: skip
        await some_tokens(town)
        other = successor(town, worker)
        assert (await other.adopt(worker, "r", 1, HASH)).result == ADOPTED
        await asyncio.sleep(worker.config.sessions.grace_s + 1.0)
        assert not worker.inspect().rows
        other.close()

    play(scene)


def test_one_routers_suspicion_of_a_prefill_worker_ends_no_row_of_another_router(
    play: Play,
) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p"), town.add("d", "d")
        other = successor(town, p, d)
        await asyncio.sleep(0.01)
        start(town.router, p, d)
        judge = worker_pb2.JudgePeer(epoch=p.context.epoch)
        await asyncio.sleep(0.002)
        for _ in range(20):
            other.send(d, worker_pb2.SessionRequest(judge_peer=judge))
            await asyncio.sleep(0.001)
        await town.router.wait_for_kind(A, "FINISHED")
        assert "DEAD" not in town.router.kinds(A)
        assert town.router.answer(A) == ANSWER
        other.close()

    play(scene)


def test_router_that_was_away_for_longer_than_logs_are_kept_begins_nothing(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        other = successor(town, worker)
        start(other, worker, attempt=THEIRS)
        await other.wait_for_kind(THEIRS, "FINISHED")
        await asyncio.sleep(worker.config.sessions.grace_s + 1.0)
        assert not (await other.find(worker, "r")).attempts
        start(town.router, worker)
        await town.router.wait_for_kind(A, "TAKEN")
        assert not town.router.tokens[A]
        other.close()

    play(scene)


def test_fence_of_an_adopted_row_is_remembered_too(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        start(town.router, worker)
        other = successor(town, worker)
        await some_tokens(town)
        assert (await other.adopt(worker, "r", 3, HASH)).result == ADOPTED
        other.attach(worker, A, 0)
        await other.wait_for_kind(A, "FINISHED")
        await asyncio.sleep(worker.config.sessions.grace_s + 1.0)
        start(town.router, worker, attempt=THEIRS)
        await town.router.wait_for_kind(THEIRS, "TAKEN")
        other.close()

    play(scene)
