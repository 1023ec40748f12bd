"""Another router's request, from what its workers or its client know of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from twolane.attempt_number import first_attempt
from twolane.errors import DuplicateRequestError, QuotaError, UnknownSubmissionError
from twolane.params import SamplingParams
from twolane.router.claims import Claims
from twolane.router.config import RouterConfig
from twolane.router.dispatch.board import Board, NullDispatchObserver
from twolane.router.dispatch.dispatch import Dispatcher
from twolane.router.requests.adopted import KnownAttempt, newest
from twolane.router.requests.request import Job, Request, RequestState
from twolane.router.store import Ask, Held, LocalStore, Short, Verdict
from twolane.router.tenants.accounts import no_limits
from twolane.router.text.detokenizer import Decoding, Detokenizer
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1 import cluster_pb2, sampling_pb2, worker_pb2

P, D, EOS = 1, 2, 9
ADOPTED = worker_pb2.Adopted.RESULT_ADOPTED


def dispatcher() -> Dispatcher:
    made = Dispatcher(RouterConfig())
    for epoch, role in ((P, worker_pb2.ROLE_PREFILL), (D, worker_pb2.ROLE_DECODE)):
        announce = cluster_pb2.AnnounceRequest(
            worker=worker_pb2.WorkerAddress(worker_id=f"w{epoch}", epoch=epoch, endpoint="e"),
            roles=[role], model="m", fingerprint="f", n_pages=1_000, page_tokens=16,
            max_context_tokens=1_000, vocab_size=100, decode_rows=64,
        )  # fmt: skip
        made.announce(announce, 0.0)
        made.session_opened(epoch, 0.0)
    return made


def job(name: str = "s", request_id: str = "mine", min_tokens: int = 0) -> Job:
    params = SamplingParams(max_tokens=60, min_tokens=min_tokens, seed=1)
    return Job(
        submission_id=name, request_id=request_id, model="m", token_ids=(5, 6, 7), params=params,
        arrived=0.0, fence=1, resume_token=b"x" * 16,
    )  # fmt: skip


def known(by_p: list[int], by_d: list[int], *, is_cancelled: bool = False) -> KnownAttempt:
    """What each worker has told of the answer."""
    answers = {}
    for epoch, token_ids in ((P, by_p), (D, by_d)):
        role = worker_pb2.ROLE_PREFILL if epoch == P else worker_pb2.ROLE_DECODE
        columns = worker_pb2.TokenColumns(
            role=role, rows=[0], first_indexes=[0], counts=[len(token_ids)], token_ids=token_ids
        )
        key = worker_pb2.AttemptKey(submission_id="s", attempt=first_attempt(0))
        assign = worker_pb2.Assign(key=key, token_ids=[5, 6, 7], n_prompt=3)
        assign.prefill.epoch, assign.sampling.max_tokens = P, 60
        one = worker_pb2.AdoptedAttempt(
            key=key, assign=assign, tokens=[columns], is_cancelled=is_cancelled and epoch == D
        )
        one.decode.epoch = D
        answers[epoch] = worker_pb2.Adopted(submission_id="s", result=ADOPTED, attempts=[one])
    found = newest(answers)
    assert found is not None
    return found


def said(made: Dispatcher) -> set[str]:
    return {command.WhichOneof("command") or "" for _, command in made.take_outbox()}


def test_token_on_which_two_workers_disagree_is_not_known() -> None:
    assert [token.token_id for token in known([10], [10, 11, 12]).tokens] == [10, 11, 12]
    assert [token.token_id for token in known([10, 20], [10, 11, 12]).tokens] == [10]


def test_rows_that_go_on_are_attached_and_rows_that_were_cancelled_are_made_again() -> None:
    for is_cancelled in (False, True):
        made = dispatcher()
        said(made)
        request = made.adopt(
            job(), known([10], [10, 11], is_cancelled=is_cancelled), None, 1, 0, 0.0
        )
        assert ("attach" in said(made)) is not is_cancelled
        assert request.n_attempts == 1 + is_cancelled
        assert request.state is RequestState.RUNNING
        made.board.check_integrity()


@pytest.mark.parametrize("by_d", [[], [10, 11]])
def test_rows_of_which_both_workers_are_lost_are_made_again_once(by_d: list[int]) -> None:
    made = dispatcher()
    for epoch in (P, D):
        made.report_gone(epoch, 0.0)
    request = made.adopt(job(), known([10], by_d), None, 1, 0, 0.0)
    made.tick(0.1)
    assert request.state is RequestState.RESUMING
    assert sum(n for name, n in made.board.counters.items() if name.startswith("resumes.")) == 1
    made.board.check_integrity()


def test_answer_that_ends_before_what_its_client_has_is_refused_and_leaves_nothing() -> None:
    made = dispatcher()
    said(made)
    wanted = replace(job(), params=SamplingParams(max_tokens=60, stop=("c",), seed=1))
    rows = known([10], [10, 11, 12, 13, 14])
    letters = SimpleNamespace(text_bytes={10 + n: b"abcde"[n : n + 1] for n in range(5)})
    text = Detokenizer(cast(Decoding, letters))
    with pytest.raises(UnknownSubmissionError, match="only 3 tokens of the answer are left"):
        made.adopt(wanted, rows, text, 4, 0, 0.0)
    assert not made.board.requests
    assert said(made) == {"cancel"}
    made.board.check_integrity()


def test_name_or_label_of_a_running_request_is_not_adopted() -> None:
    made = dispatcher()
    made.submit(job(), None, 0.0)
    with pytest.raises(UnknownSubmissionError, match="you have no such answer"):
        made.adopt(job(), known([10], [10]), None, 1, 0, 0.0)
    with pytest.raises(UnknownSubmissionError, match="you have no such answer"):
        made.resume(job(), None, [10], 0, 0.0)
    with pytest.raises(DuplicateRequestError, match="mine"):
        made.adopt(job("other"), known([10], [10]), None, 1, 0, 0.0)
    made.board.check_integrity()


def resumed(min_tokens: int, token_ids: list[int]) -> Request:
    """By a model whose answers end with `EOS`."""
    made = dispatcher()
    facts = made.members.get(P)
    assert facts is not None
    facts.announce.eos_token_ids.append(EOS)
    return made.resume(job(min_tokens=min_tokens), None, token_ids, 0, 0.0)


def test_answer_that_its_client_has_whole_is_over_at_its_first_end() -> None:
    request = resumed(0, [10, EOS, 11])
    assert (request.state, request.answer.tokens) == (RequestState.FINISHED, [10, EOS])
    assert request.finish_reason == sampling_pb2.FINISH_REASON_STOP


def test_end_within_the_least_tokens_of_an_answer_that_its_client_has_is_none() -> None:
    request = resumed(2, [10, EOS, 11])
    assert not request.is_over
    assert request.answer.tokens == [10, EOS, 11]


def test_name_of_a_running_request_is_not_claimed_under_another_label() -> None:
    made = dispatcher()
    made.submit(job(), None, 0.0)
    store = made.board.store
    assert isinstance(store, LocalStore)
    with virtual_time_runner() as runner, pytest.raises(UnknownSubmissionError):
        runner.run(Claims(made.board).take(job(request_id="another's")))
    assert len(store) == 1
    made.board.check_integrity()


class Refusing(LocalStore):
    """Another router's claims stand in the way."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__()
        self.verdict, self.n_asked = verdict, 0

    async def admit(self, ask: Ask) -> Verdict:
        self.n_asked += 1
        return self.verdict


@pytest.mark.parametrize(
    ("verdict", "kind", "n_asked"),
    [
        (Held("another", "router-1"), DuplicateRequestError, 2),
        (Short("requests", 1.0, 0.0), QuotaError, 1),
    ],
)
def test_claim_that_the_shared_store_refuses_is_told_and_counted(
    verdict: Verdict, kind: type[Exception], n_asked: int
) -> None:
    store = Refusing(verdict)
    board = Board(RouterConfig(), NullDispatchObserver(), no_limits, store)
    with virtual_time_runner() as runner, pytest.raises(kind):
        runner.run(Claims(board).take(job()))
    assert store.n_asked == n_asked, "a client that hung up is waited for once"
    assert sum(n for name, n in board.counters.items() if name.startswith("refused.")) == 1
