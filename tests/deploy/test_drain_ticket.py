"""`drain` on a real cluster: a worker is killed at its ticket, and nobody notices."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.timing import PATIENT
from twolane import AdminClient, Completion, PreconditionError
from twolane.testing import LocalCluster, start_local

N_CLIENTS = 4
DRAINED_AGAIN_S = 60.0
COSTLY = [
    f"resumes.{reason}"
    for reason in ("decode_worker_lost", "prefill_worker_lost", "missing_events", "stalled")
]


def test_a_busy_worker_of_either_role_is_killed_at_its_ticket_and_nothing_fails() -> None:
    with start_local(engine="fake", prefill=2, decode=2, **PATIENT) as cluster:
        end_at_tickets(cluster, n=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_same_a_hundred_times() -> None:
    with start_local(engine="fake", prefill=2, decode=2, **PATIENT) as cluster:
        end_at_tickets(cluster, n=50)


def end_at_tickets(cluster: LocalCluster, n: int) -> None:
    """`n` times of each role, under load."""
    stop = threading.Event()

    def ask(number: int) -> list[Completion]:
        answers = []
        with cluster.client() as client:
            while not stop.is_set():
                prompt = f"once upon {number}" * (1 + number)
                answers.append(client.generate(prompt, max_tokens=60, seed=1))
                stop.wait(0.02)  # the processes that start again need the cores, too
        return answers

    with ThreadPoolExecutor(N_CLIENTS) as pool, AdminClient(cluster.admin_endpoint) as admin:
        asking: list[Future[list[Completion]]] = [pool.submit(ask, i) for i in range(N_CLIENTS)]
        try:
            for i in range(n):
                for role in ("decode", "prefill"):
                    end_at_ticket(cluster, admin, f"{role}-{i % 2}", hand_over=i % 2 == 0)
        finally:
            stop.set()
        for future in asking:
            answers = future.result()
            assert answers
            assert len({answer.token_ids for answer in answers}) == 1
        counters = admin.status().counters
        assert not {name: counters[name] for name in COSTLY if counters.get(name)}


def end_at_ticket(cluster: LocalCluster, admin: AdminClient, name: str, *, hand_over: bool) -> None:
    epoch = next(w.epoch for w in admin.status().workers if w.worker_id == name and w.is_here)
    with pytest.raises(PreconditionError):
        admin.drain(name, expect_epoch=epoch + 1)
    admin.drain(name, hand_over=hand_over, expect_epoch=epoch)
    *_, last = admin.watch_drain(name, timeout_s=60.0, expect_epoch=epoch)
    assert last is not None
    assert last.has_ticket
    admin.take_ticket(name, last.number, expect_epoch=epoch)
    with pytest.raises(PreconditionError):
        admin.drain(name, undo=True)
    n_events = len(cluster.events)
    cluster.kill(name)
    cluster.wait_for("started", name, after=n_events)
    until = time.monotonic() + DRAINED_AGAIN_S
    while not any(
        w.worker_id == name and w.epoch != epoch and w.is_here and w.drain
        for w in admin.status().workers
    ):
        assert time.monotonic() < until, f"{name} is not drained, as it was before"
        time.sleep(0.05)
    admin.drain(name, undo=True)
