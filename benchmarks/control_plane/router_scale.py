"""The cost of the router's own code, by cluster size and by requests in flight.

`python -m benchmarks.control_plane.router_scale` drives a `Dispatcher` in this process
(`benchmarks.control_plane.router_rig`), and measures CPU time. Garbage is collected as in a
router's process:

    by workers      submit + place    a prompt of 1,024 tokens is hashed, admitted, placed and sent
                    the same, queued  every worker is full: one is submitted; one ends, so the head
                                      of the queue is placed
                    load report       parsed and processed; then the queue is checked
                    the same, queued  with a waiting head, and a page more or less in the report
                    announce          identical to the previous one
                    tick, model facts of an idle cluster; after an announcement with a change
    by requests     tick              under load (see `.router_load`): mean, 99th percentile,
                                      and how many hit their deadline or stalled meanwhile
                    counts            of requests by state, for metrics
                    kB a request      of 8,192 tokens, running
"""

from __future__ import annotations

import gc
import time

import click
import psutil

from benchmarks.control_plane.router_load import LoadedRouter
from benchmarks.control_plane.router_rig import Rig, mean_us
from benchmarks.results import save
from twolane.deploy.process.serving import settle_memory
from twolane.router.config import AdmissionConfig, RouterConfig
from twolane.router.requests.request import Request
from twolane.router.status import make_status

WORKERS = (10, 100, 1_000)
REQUESTS = (1_000, 10_000, 50_000)
TICKS = 400
AIMS = {"submit_place_us": 250, "load_report_us": 20, "tick_p99_ms_at_50000": 2.0}
LONG_PROMPT_TOKENS = 8_192
_ROWS = 4


def by_workers(n_workers: int) -> dict[str, float]:
    admission = AdmissionConfig(extra_rows=0, max_queued=10_000, max_prefill_backlog_tokens=10**9)
    rig = Rig(n_workers, RouterConfig(admission=admission), rows=_ROWS)
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


def by_requests(n_requests: int, n_ticks: int = TICKS) -> dict[str, float]:
    load = LoadedRouter(n_requests)
    board, took_ms = load.rig.dispatcher.board, []
    before = board.counters.copy()
    for _ in range(n_ticks):
        took_ms.append(load.tick_ms())
        load.turn_over()
    board.check_integrity()
    late, stalled = "failed.DEADLINE_EXCEEDED", "resumes.stalled"

    def count(n: int) -> None:
        make_status(board, started=0.0, now=load.rig.now, with_requests=False)

    return {
        "tick_ms": sum(took_ms) / n_ticks,
        "tick_p99_ms": sorted(took_ms)[int(0.99 * n_ticks)],
        "late": board.counters[late] - before[late],
        "stalled": board.counters[stalled] - before[stalled],
        "counts_ms": mean_us(20, count) / 1e3,
    }


def request_kb(n_requests: int = 2_000) -> float:
    """Resident memory per running request with a long prompt."""
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
    settle_memory()
    workers: dict[str, dict[str, float]] = {}
    requests: dict[str, dict[str, float]] = {}
    kb = round(request_kb(), 1)
    click.echo(f"a request of {LONG_PROMPT_TOKENS:,} tokens: {kb} kB")
    for n_workers in WORKERS:
        found = {name: round(us, 1) for name, us in by_workers(n_workers).items()}
        workers[str(n_workers)] = found
        click.echo(f"{n_workers:,} workers: {_format(found)}")
    for n_requests in REQUESTS:
        found = {name: round(ms, 3) for name, ms in by_requests(n_requests).items()}
        requests[str(n_requests)] = found
        click.echo(f"{n_requests:,} requests in flight: {_format(found)}")
    figures = {"aims": AIMS, "by_workers": workers, "by_requests_in_flight": requests}
    path = save("router_scale", {**figures, "kb_a_request_of_8192_tokens": kb})
    click.echo(f"saved {path}")


def _format(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value}" for name, value in figures.items())


if __name__ == "__main__":
    main()
