"""What the router looks at for a tick or an announce: nothing that is unchanged or not due."""

from typing import Any

import pytest

from twolane.params import SamplingParams
from twolane.router.config import AdmissionConfig, RouterConfig
from twolane.router.dispatch.dispatch import Dispatcher
from twolane.router.dispatch.request_clock import RequestClock
from twolane.router.members.member import MemberState
from twolane.router.members.membership import Membership
from twolane.router.requests.request import Job
from twolane.v1 import cluster_pb2, worker_pb2

MANY = 400


def announcement(epoch: int, **fields: Any) -> cluster_pb2.AnnounceRequest:
    facts: dict[str, Any] = {
        "roles": [epoch % 2 + 1], "model": "m", "fingerprint": "f", "n_pages": 100_000,
        "page_tokens": 16, "max_context_tokens": 2048, "vocab_size": 50, "decode_rows": MANY,
    }  # fmt: skip
    address = worker_pb2.WorkerAddress(worker_id=f"w{epoch}", epoch=epoch, endpoint="e")
    return cluster_pb2.AnnounceRequest(worker=address, **(facts | fields))


def cluster(n_workers: int) -> Dispatcher:
    admission = AdmissionConfig(max_prefill_backlog_tokens=10**9)
    dispatcher = Dispatcher(RouterConfig(admission=admission))
    for epoch in range(1, n_workers + 1):
        dispatcher.announce(announcement(epoch), 0.0)
        dispatcher.session_opened(epoch, 0.0)
    return dispatcher


def submit(dispatcher: Dispatcher, n: int, now: float, deadline: float | None = None) -> None:
    params = SamplingParams(max_tokens=8, seed=1)
    job = Job(
        request_id=f"r{n}",
        model="m",
        token_ids=(1, 2, 3),
        params=params,
        arrived=now,
        deadline=deadline,
    )
    dispatcher.submit(job, None, now)


def heard_from_all(dispatcher: Dispatcher, now: float) -> None:
    for member in dispatcher.members:
        dispatcher.on_message(member.epoch, worker_pb2.SessionResponse(), now)


def test_tick_looks_at_no_request_that_is_not_due(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    real = RequestClock._look

    def look(self: RequestClock, request: Any, now: float) -> None:
        looks.append(request)
        real(self, request, now)

    monkeypatch.setattr(RequestClock, "_look", look)
    dispatcher = cluster(4)
    for n in range(MANY):
        submit(dispatcher, n, 0.0, deadline=1.5 if n == 7 else None)
    for step in range(1, 30):
        dispatcher.tick(step * 0.05)
    assert not looks
    dispatcher.tick(1.5)
    assert [request.job.request_id for request in looks] == ["r7"]
    assert looks[0].is_over
    dispatcher.board.check_integrity()


def test_announce_equal_to_the_last_keeps_the_facts_of_models() -> None:
    dispatcher = cluster(20)
    facts = dispatcher.members.models()
    dispatcher.board.roster.refresh()
    for epoch in range(1, 21):
        dispatcher.announce(announcement(epoch), 0.5)
    assert dispatcher.members.models() is facts
    assert not dispatcher.members.changed
    dispatcher.announce(announcement(3, n_pages=7), 0.6)
    assert dispatcher.members.models() is not facts
    assert dispatcher.members.changed == {3}


def test_tick_looks_at_no_worker_before_its_silence_may_have_lasted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = []
    real = Membership._look

    def look(self: Membership, member: Any, now: float) -> None:
        looks.append(member.epoch)
        real(self, member, now)

    monkeypatch.setattr(Membership, "_look", look)
    dispatcher = cluster(100)
    for step in range(1, 61):  # three seconds, heard each
        dispatcher.tick(step * 0.05 - 0.01)
    heard_from_all(dispatcher, 2.99)
    assert not looks
    dispatcher.tick(3.0)
    assert len(looks) == 100
    looks.clear()
    for step in range(61, 119):
        dispatcher.tick(step * 0.05)
    assert not looks
    dispatcher.tick(6.0)
    assert len(looks) == 100
    assert all(member.state is MemberState.SUSPECT for member in dispatcher.members)
