"""What a router concludes from the answers of workers that it has asked for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from tests.router.members.test_own_pause import stop_for
from twolane.attempt_number import first_attempt
from twolane.errors import DeadlineError, TakenOverError, UnknownSubmissionError
from twolane.router.config import RouterConfig
from twolane.router.members.membership import Membership
from twolane.router.store import Found, LocalStore, Placement
from twolane.router.takeovers import Takeovers
from twolane.security.identity import ANONYMOUS
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1 import cluster_pb2, inference_pb2, worker_pb2

P, D = 1, 2  # epochs
ATTEMPT = first_attempt(0)
ADOPTED = worker_pb2.Adopted.RESULT_ADOPTED
GONE = worker_pb2.Adopted.RESULT_GONE
TAKEN = worker_pb2.Adopted.RESULT_TAKEN
WANTED = inference_pb2.ResumeRequest(
    submission_id="s", resume_token=b"x" * 16, takeover=1, n_tokens=3
)


class Index(LocalStore):
    """Names both workers, or nobody."""

    def __init__(self, *, knows: bool) -> None:
        super().__init__()
        self.knows = knows

    async def find(self, submission_id: str) -> Found | None:
        return Found("first", "", Placement(ATTEMPT, P, D)) if self.knows else None


@dataclass
class Desk:
    """A router's takeovers and two workers, which answer only what a test lets them answer."""

    takeovers: Takeovers
    members: Membership
    sent: list[tuple[int, str]]
    results: dict[int, worker_pb2.Adopted.Result] = field(default_factory=dict)
    n_tokens: dict[int, int] = field(default_factory=dict)  # that a worker tells
    after_s: dict[int, float] = field(default_factory=dict)  # how long an ADOPT takes

    def send(self, epoch: int, command: worker_pb2.SessionRequest) -> None:
        self.sent.append((epoch, command.WhichOneof("command") or ""))
        message = worker_pb2.SessionResponse()
        if command.HasField("find"):
            message.found.add(find=command.find, submission_id="s")
        elif epoch in self.results:
            told = message.adopted.add(
                submission_id="s", fence=command.adopt.fence, result=self.results[epoch]
            )
            if self.results[epoch] == ADOPTED:
                told.attempts.append(self.attempt(self.n_tokens.get(epoch, 1)))
        else:
            return
        loop, hear = asyncio.get_running_loop(), self.takeovers.on_message
        loop.call_later(self.after_s.get(epoch, 0.0), hear, epoch, message)

    def attempt(self, n_tokens: int) -> worker_pb2.AdoptedAttempt:
        key = worker_pb2.AttemptKey(submission_id="s", attempt=ATTEMPT)
        assign = worker_pb2.Assign(key=key, token_ids=[5, 6, 7], n_prompt=3)
        assign.sampling.max_tokens = 60
        columns = worker_pb2.TokenColumns(
            role=worker_pb2.ROLE_DECODE,
            rows=[0],
            first_indexes=[0],
            counts=[n_tokens],
            token_ids=range(10, 10 + n_tokens),
        )
        decode = worker_pb2.WorkerAddress(worker_id="d0", epoch=D)
        return worker_pb2.AdoptedAttempt(key=key, assign=assign, decode=decode, tokens=[columns])


def play(script: Callable[[Desk], Awaitable[None]], *, indexed: bool = False) -> None:
    async def main() -> None:
        config, sent = RouterConfig(), list[tuple[int, str]]()
        members = Membership(config.membership)
        takeovers = Takeovers(config, members, lambda e, c: desk.send(e, c), Index(knows=indexed))
        desk = Desk(takeovers, members, sent)
        now = asyncio.get_running_loop().time()
        for epoch, worker_id in ((P, "p0"), (D, "d0")):
            address = worker_pb2.WorkerAddress(worker_id=worker_id, epoch=epoch, endpoint="e")
            members.announce(cluster_pb2.AnnounceRequest(worker=address, model="m"), now)
            members.opened(epoch, now)
        await script(desk)

    with virtual_time_runner() as runner:
        runner.run(main())


def test_answers_of_both_workers_are_one_answer() -> None:
    async def script(desk: Desk) -> None:
        desk.results, desk.n_tokens = {P: ADOPTED, D: ADOPTED}, {D: 5}
        job, known = await desk.takeovers.take(WANTED, ANONYMOUS, None)
        assert [token.token_id for token in known.tokens] == [10, 11, 12, 13, 14]
        assert (job.model, job.fence, list(job.token_ids)) == ("m", 1, [5, 6, 7])

    play(script)


def test_deadline_that_passes_while_workers_are_asked_is_told() -> None:
    async def script(desk: Desk) -> None:
        desk.results, desk.after_s = {P: ADOPTED, D: ADOPTED}, {P: 0.4, D: 0.4}
        now = asyncio.get_running_loop().time()
        with pytest.raises(DeadlineError, match="while workers were asked"):
            await desk.takeovers.take(WANTED, ANONYMOUS, now + 0.3)

    play(script)


@pytest.mark.parametrize("n_decode", [5, 2])
def test_index_alone_is_believed_only_if_workers_have_what_the_client_has(n_decode: int) -> None:
    """The client has three tokens: one who has fewer does not answer for all others."""

    async def script(desk: Desk) -> None:
        desk.results, desk.n_tokens = {P: ADOPTED, D: ADOPTED}, {D: n_decode}
        await desk.takeovers.take(WANTED, ANONYMOUS, None)
        assert ((P, "find") in desk.sent) == (n_decode < WANTED.n_tokens)

    play(script, indexed=True)


def test_answer_that_a_later_takeover_has_at_one_worker_is_not_shared_with_it() -> None:
    async def script(desk: Desk) -> None:
        desk.results = {P: TAKEN, D: ADOPTED}
        with pytest.raises(TakenOverError, match="a later takeover"):
            await desk.takeovers.take(WANTED, ANONYMOUS, None)

    play(script)


def test_answer_of_which_nothing_is_left_by_the_time_of_its_adoption_is_unknown() -> None:
    async def script(desk: Desk) -> None:
        desk.results = {P: GONE, D: GONE}
        with pytest.raises(UnknownSubmissionError, match="answer and token"):
            await desk.takeovers.take(WANTED, ANONYMOUS, None)

    play(script)


def test_answer_whose_workers_are_forgotten_while_they_are_asked_is_unknown() -> None:
    async def script(desk: Desk) -> None:
        desk.results, desk.after_s = {P: ADOPTED, D: ADOPTED}, {P: 0.2, D: 0.2}
        task = asyncio.create_task(desk.takeovers.take(WANTED, ANONYMOUS, None))
        await asyncio.sleep(0.1)
        now = asyncio.get_running_loop().time()
        for epoch in (P, D):
            desk.members.report_gone(epoch, now)
        desk.members.tick(now + desk.members.config.forget_after_s + 1.0)
        assert not list(desk.members)
        with pytest.raises(UnknownSubmissionError, match="are gone"):
            await task

    play(script)


def test_query_is_repeated_to_awaited_workers_that_have_not_answered_and_to_no_others() -> None:
    async def script(desk: Desk) -> None:
        adopt = worker_pb2.Adopt(submission_id="s", fence=1)
        desk.results = {P: ADOPTED}
        until = asyncio.get_running_loop().time() + 0.5
        task = asyncio.create_task(desk.takeovers.adopt(adopt, {P, D}, until))
        await asyncio.sleep(0.1)
        assert sorted(desk.sent) == [(P, "adopt"), (D, "adopt")]
        desk.sent.clear()
        for epoch in (P, D, 3):  # P has answered, and nobody waits for the third
            desk.takeovers.on_opened(epoch)
        assert desk.sent == [(D, "adopt")]
        assert set(await task) == {P}

    play(script)


def test_worker_that_is_lost_is_not_waited_for() -> None:
    async def script(desk: Desk) -> None:
        desk.results, desk.n_tokens = {P: ADOPTED, D: ADOPTED}, {D: 5}
        loop = asyncio.get_running_loop()
        address = worker_pb2.WorkerAddress(worker_id="d1", epoch=3, endpoint="e")
        desk.members.announce(cluster_pb2.AnnounceRequest(worker=address, model="m"), loop.time())
        desk.members.report_gone(3, loop.time())
        began = loop.time()
        await desk.takeovers.take(WANTED, ANONYMOUS, None)
        assert loop.time() - began < 0.1
        assert 3 not in {epoch for epoch, _ in desk.sent}

    play(script)


@pytest.mark.parametrize("indexed", [True, False])
def test_what_workers_said_during_a_pause_of_the_router_is_still_waited_for(indexed: bool) -> None:
    async def script(desk: Desk) -> None:
        desk.results, desk.n_tokens = {P: ADOPTED, D: ADOPTED}, {D: 5}
        desk.after_s = {P: 30.1, D: 30.1}  # it is read a moment after the pause
        task = asyncio.create_task(desk.takeovers.take(WANTED, ANONYMOUS, None))
        await asyncio.sleep(0.05)
        desk.after_s.clear()
        stop_for(30.0)
        _, known = await task
        assert len(known.tokens) == 5
        assert ((P, "find") in desk.sent) != indexed

    play(script, indexed=indexed)


@pytest.mark.parametrize(("stopped_s", "given_up_s"), [(0.6, 0.6), (30.0, 30.5)])
def test_worker_that_says_nothing_is_given_up_in_its_time_after_a_pause(
    stopped_s: float, given_up_s: float
) -> None:
    """A pause that cannot have cost much of the wait changes nothing."""

    async def script(desk: Desk) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + RouterConfig().dispatch.find_wait_s
        adopt = worker_pb2.Adopt(submission_id="s", fence=1)
        task = asyncio.create_task(desk.takeovers.adopt(adopt, {P}, until))
        await asyncio.sleep(0.0)
        stop_for(stopped_s)
        assert await task == {}
        assert loop.time() == pytest.approx(given_up_s, abs=0.01)

    play(script)
