"""Cancels are said again when a session opens: all of them, first, and never so many messages that
the link breaks."""

from __future__ import annotations

from collections.abc import Iterator

from twolane.params import SamplingParams
from twolane.router.config import RouterConfig
from twolane.router.dispatch.dispatch import Dispatcher
from twolane.router.members.member import CANCEL_MEMORY_S
from twolane.router.requests.request import Job
from twolane.rpc.link import MAX_UNSENT_MESSAGES
from twolane.v1 import cluster_pb2, worker_pb2

EPOCH, MANY = 5, 3 * MAX_UNSENT_MESSAGES
P, D = worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE


def dispatcher() -> Dispatcher:
    made = Dispatcher(RouterConfig())
    announce = cluster_pb2.AnnounceRequest(
        worker=worker_pb2.WorkerAddress(worker_id="w", epoch=EPOCH, endpoint="w:1"),
        roles=[P, D],
        model="m",
        fingerprint="f",
        n_pages=1_000,
        page_tokens=16,
        max_context_tokens=1_000,
        vocab_size=10,
        decode_rows=64,
    )
    made.announce(announce, 0.0)
    made.session_opened(EPOCH, 0.0)
    load = worker_pb2.LoadReport(pages=worker_pb2.PageCounts(free=1_000))
    made.on_message(EPOCH, worker_pb2.SessionResponse(load=load), 0.0)
    return made


def said(made: Dispatcher) -> list[worker_pb2.SessionRequest]:
    return [command for _, command in made.take_outbox()]


def keys(commands: list[worker_pb2.SessionRequest]) -> Iterator[str]:
    for command in commands:
        for key in command.cancel.keys:
            yield key.submission_id


def test_many_cancels_at_once_are_few_messages() -> None:
    made = dispatcher()
    said(made)
    for n in range(MANY):
        made.board.cancel(EPOCH, f"r{n}", 1)
    commands = said(made)
    assert len(commands) < MAX_UNSENT_MESSAGES / 100
    assert list(keys(commands)) == [f"r{n}" for n in range(MANY)]


def test_cancels_are_said_again_in_few_messages_and_before_new_rows() -> None:
    made = dispatcher()
    for n in range(MANY):
        made.board.cancel(EPOCH, f"r{n}", 1)
    said(made)
    made.session_broken(EPOCH, 1.0)
    params = SamplingParams(max_tokens=5, seed=1)
    job = Job(request_id="x", model="m", token_ids=(1, 2), params=params, arrived=1.0)
    made.submit(job, None, 1.0)
    made.session_opened(EPOCH, 1.1)
    made.settle(1.1)
    commands = said(made)
    assert len(commands) < MAX_UNSENT_MESSAGES / 100
    assert list(keys(commands)) == [f"r{n}" for n in range(MANY)]
    assert commands[-1].HasField("assign")


def test_row_that_is_assigned_between_two_cancels_stays_between_them() -> None:
    made = dispatcher()
    said(made)
    made.board.cancel(EPOCH, "before", 1)
    params = SamplingParams(max_tokens=5, seed=1)
    job = Job(request_id="x", model="m", token_ids=(1, 2), params=params, arrived=1.0)
    request = made.submit(job, None, 1.0)
    made.settle(1.0)
    made.board.cancel(EPOCH, request.job.submission_id, 1)
    kinds = [command.WhichOneof("command") for command in said(made)]
    assert kinds == ["cancel", "assign", "cancel"]


def test_cancels_are_forgotten_by_age_whether_a_session_is_open_or_not() -> None:
    for is_open in (True, False):
        made = dispatcher()
        made.tick(1.0)
        made.board.cancel(EPOCH, "old", 1)
        if not is_open:
            made.session_broken(EPOCH, 1.0)
        made.tick(CANCEL_MEMORY_S - 5.0)
        made.board.cancel(EPOCH, "young", 1)
        member = made.members.get(EPOCH)
        assert member is not None
        assert len(member.cancels) == 2
        member.last_heard = made.board.now + 5.0
        made.tick(CANCEL_MEMORY_S + 1.0)
        assert [name for name, _ in member.cancels] == ["young"]


def test_saying_cancels_again_does_not_make_them_young() -> None:
    made = dispatcher()
    made.tick(1.0)
    made.board.cancel(EPOCH, "old", 1)
    for now in (10.0, 20.0, 30.0):
        made.session_broken(EPOCH, now)
        made.session_opened(EPOCH, now)
        made.tick(now)
    made.tick(CANCEL_MEMORY_S + 8.0)  # when it is looked at next
    member = made.members.get(EPOCH)
    assert member is not None
    assert not member.cancels


def test_proofs_of_death_are_forgotten_in_the_end() -> None:
    made = dispatcher()
    made.report_gone(99, 0.0)
    made.session_broken(EPOCH, 1.0)
    said(made)
    made.session_opened(EPOCH, 2.0)
    assert [c.peer_gone.epoch for c in said(made) if c.HasField("peer_gone")] == [99]
    made.tick(601.0)
    assert not made.members.proofs
