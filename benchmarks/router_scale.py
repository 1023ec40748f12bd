"""What the router's own code costs by the size of the cluster and by the requests in flight.

`python -m benchmarks.router_scale` drives a `Dispatcher` in this process, without gRPC and text,
and counts processor time:

    by workers      submit + place    one prompt of 1,024 tokens is hashed, admitted, placed, told
                    the same, queued  every worker is full: one is submitted; one has ended, so the
                                      head of the queue is placed
                    load report       parsed, taken in; then what waits is looked at
                    the same, queued  with a head that waits, and news of a page more or less
                    announce          the same as the one before
                    tick, model facts of an idle cluster; after an announce that changed something
    by requests     tick, counts      nothing is due
                    kB a request      of 8,192 tokens, running
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from dataclasses import replace

import click
import psutil

from benchmarks.results import save
from router.affinity import prefix_hashes
from router.config import AdmissionConfig, RouterConfig
from router.dispatch import Dispatcher
from router.request import Job, Request
from router.status import make_status
from twolane.errors import CancelledError
from twolane.params import SamplingParams
from twolane.v1 import cluster_pb2, inference_pb2, worker_pb2

WORKERS = (10, 100, 1_000)
REQUESTS = (1_000, 10_000, 50_000)
AIMS = {"submit_place_us": 250, "load_report_us": 20, "tick_ms_at_50000": 2.0}
PROMPT_TOKENS, LONG_PROMPT_TOKENS = 1_024, 8_192
_ROWS = 4
_PARAMS = SamplingParams(max_tokens=64, seed=1)


class Rig:
    """A dispatcher with workers, half of them for prefill, that say what they are told to."""

    def __init__(self, n_workers: int, config: RouterConfig, rows: int = _ROWS) -> None:
        self.dispatcher = Dispatcher(config)
        self.n_workers = n_workers
        self.now = 100.0
        self.rows = rows
        self._n_jobs = 0
        self._rng = random.Random(1)
        for epoch in range(1, n_workers + 1):
            self.dispatcher.announce(self.announcement(epoch), self.now)
            self.dispatcher.session_opened(epoch, self.now)
            self.report(epoch)
        self.settle()

    def announcement(self, epoch: int) -> cluster_pb2.AnnounceRequest:
        role = worker_pb2.ROLE_PREFILL if epoch % 2 else worker_pb2.ROLE_DECODE
        return cluster_pb2.AnnounceRequest(
            worker=worker_pb2.WorkerAddress(worker_id=f"worker-{epoch}", epoch=epoch, endpoint="e"),
            roles=[role],
            model="m",
            fingerprint="f",
            n_pages=10**6,
            page_tokens=64,
            max_context_tokens=131_072,
            vocab_size=150_000,
            decode_rows=self.rows,
        )

    def report(self, epoch: int, used: int = 0) -> None:
        pages = worker_pb2.PageCounts(used=used, free=10**6 - used)
        message = worker_pb2.SessionResponse(load=worker_pb2.LoadReport(pages=pages, rows=used))
        raw = message.SerializeToString()
        self.dispatcher.on_message(epoch, worker_pb2.SessionResponse.FromString(raw), self.now)

    def job(self, n_tokens: int = PROMPT_TOKENS) -> Job:
        self._n_jobs += 1
        numbers = [self._rng.randrange(150_000) for _ in range(n_tokens)]
        ids = inference_pb2.TokenIds(ids=numbers).ids
        name = f"{self._n_jobs:016x}"
        return Job(request_id=name, model="m", token_ids=ids, params=_PARAMS, arrived=self.now)

    def submit(self, job: Job) -> Request:
        """As intake and the doors do it."""
        job = replace(job, prefix_hashes=prefix_hashes(job.token_ids))
        request = self.dispatcher.submit(job, None, self.now)
        self.settle()
        return request

    def end(self, request: Request) -> None:
        """What waits is not placed by that, but when all has settled."""
        self.dispatcher.end(request.job.submission_id, CancelledError("left"), self.now)

    def settle(self) -> None:
        """As the router does it once a turn of its loop."""
        self.dispatcher.settle(self.now)
        self.dispatcher.take_outbox()
        self.dispatcher.take_touched()

    def tick(self) -> None:
        self.now += 0.001
        self.dispatcher.tick(self.now)
        self.dispatcher.take_outbox()


def mean_us(count: int, work: Callable[[int], object]) -> float:
    """Processor time of `work(0)` to `work(count - 1)`, each."""
    start = time.process_time()
    for n in range(count):
        work(n)
    return (time.process_time() - start) / count * 1e6


def by_workers(n_workers: int) -> dict[str, float]:
    admission = AdmissionConfig(extra_rows=0, max_queued=10_000, max_prefill_backlog_tokens=10**9)
    rig = Rig(n_workers, RouterConfig(admission=admission))
    dispatcher, figures = rig.dispatcher, {}
    room = n_workers // 2 * _ROWS
    jobs = [rig.job() for _ in range(min(room, 300))]
    running: list[Request] = []
    figures["submit_place_us"] = mean_us(len(jobs), lambda n: running.append(rig.submit(jobs[n])))
    figures["load_report_us"] = mean_us(2_000, lambda n: _say(rig, n, used=n % 7))
    announcement = rig.announcement(1)
    figures["announce_us"] = mean_us(500, lambda n: dispatcher.announce(announcement, rig.now))
    rig.tick()
    figures["tick_idle_us"] = mean_us(200, lambda n: rig.tick())
    changed = [rig.announcement(1) for _ in range(10)]
    for n, announce in enumerate(changed):
        announce.n_pages += n + 1

    def facts(n: int) -> None:
        dispatcher.announce(changed[n], rig.now)
        dispatcher.members.models()

    figures["model_facts_us"] = mean_us(len(changed), facts)
    while not dispatcher.board.queue:
        running.append(rig.submit(rig.job()))
    waiting = [running.pop(), *(rig.submit(rig.job()) for _ in range(20))]
    jobs = [rig.job() for _ in range(300)]

    spent_s = 0.0
    for n, job in enumerate(jobs):
        start = time.process_time()
        waiting.append(rig.submit(job))
        spent_s += time.process_time() - start
        rig.end(running[n % room])
        start = time.process_time()
        rig.settle()
        spent_s += time.process_time() - start
        running[n % room] = waiting.pop(0)
        assert running[n % room].attempt is not None
    figures["submit_place_queued_us"] = spent_s / len(jobs) * 1e6
    assert dispatcher.board.queue
    figures["load_report_queued_us"] = mean_us(2_000, lambda n: _say(rig, n, used=n % 7))
    dispatcher.board.check_integrity()
    return figures


def _say(rig: Rig, n: int, used: int) -> None:
    rig.report(n % rig.n_workers + 1, used)
    rig.settle()


def by_requests(n_requests: int) -> dict[str, float]:
    admission = AdmissionConfig(max_prefill_backlog_tokens=10**12)
    rig = Rig(20, RouterConfig(admission=admission), rows=10**6)
    for _ in range(n_requests):
        rig.submit(rig.job(64))
    board = rig.dispatcher.board
    assert not board.queue
    rig.tick()
    rig.tick()
    tick_ms = mean_us(50, lambda n: rig.tick()) / 1e3

    def count(n: int) -> None:
        make_status(board, started=0.0, now=rig.now, with_requests=False)

    return {"tick_ms": tick_ms, "counts_ms": mean_us(20, count) / 1e3}


def request_kb(n_requests: int = 2_000) -> float:
    """Resident memory of one running request with a long prompt."""
    admission = AdmissionConfig(max_prefill_backlog_tokens=10**12)
    rig = Rig(20, RouterConfig(admission=admission), rows=10**6)
    rig.submit(rig.job(LONG_PROMPT_TOKENS))
    gc.collect()
    before = psutil.Process().memory_info().rss
    kept = [rig.submit(rig.job(LONG_PROMPT_TOKENS)) for _ in range(n_requests)]
    gc.collect()
    return (psutil.Process().memory_info().rss - before) / len(kept) / 1e3


@click.command(help="Measure the router's own code by workers and by requests in flight.")
def main() -> None:
    workers: dict[str, dict[str, float]] = {}
    requests: dict[str, dict[str, float]] = {}
    kb = round(request_kb(), 1)
    click.echo(f"a request of {LONG_PROMPT_TOKENS:,} tokens: {kb} kB")
    for n_workers in WORKERS:
        found = {name: round(us, 1) for name, us in by_workers(n_workers).items()}
        workers[str(n_workers)] = found
        click.echo(f"{n_workers:,} workers: {_told(found)}")
    for n_requests in REQUESTS:
        found = {name: round(ms, 3) for name, ms in by_requests(n_requests).items()}
        requests[str(n_requests)] = found
        click.echo(f"{n_requests:,} requests in flight: {_told(found)}")
    figures = {"aims": AIMS, "by_workers": workers, "by_requests_in_flight": requests}
    path = save("router_scale", {**figures, "kb_a_request_of_8192_tokens": kb})
    click.echo(f"saved {path}")


def _told(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value}" for name, value in figures.items())


if __name__ == "__main__":
    main()
