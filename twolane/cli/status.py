"""`twolane status`: workers, pages, requests."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from twolane.cli.common import console, endpoint_option, json_option, print_json
from twolane.client import Client
from twolane.status import ClusterStatus, RequestInfo, WorkerInfo

WATCH_EVERY_S = 0.5
MAX_REQUESTS_SHOWN = 20
_EPOCH_SHOWN = 8  # digits: tells a worker from itself before a restart
_UUID_SHOWN = 12
_STATE_STYLE = {"alive": "green", "suspect": "yellow", "draining": "yellow", "gone": "red"}


@click.command()
@click.option("--watch", is_flag=True, help="Keep looking until Ctrl-C.")
@click.option("--all", "with_gone", is_flag=True, help="Workers that are gone, too.")
@json_option
@endpoint_option
def status(*, watch: bool, with_gone: bool, as_json: bool, endpoint: str | None) -> None:
    """Show workers, pages by state and requests."""
    with Client(endpoint) as client:
        if as_json:
            print_json(client.status())
        elif not watch:
            console().print(render(client.status(), with_gone=with_gone))
        else:
            first = render(client.status(), with_gone=with_gone)
            with Live(first, console=console(), screen=True) as live:
                try:
                    while True:
                        time.sleep(WATCH_EVERY_S)
                        live.update(render(client.status(), with_gone=with_gone))
                except KeyboardInterrupt:
                    return


def render(status: ClusterStatus, *, with_gone: bool = False) -> RenderableType:
    """The status as tables."""
    counters = "  ".join(f"{name} {n}" for name, n in sorted(status.counters.items()) if n)
    http = f" · http://{status.http_endpoint}/v1" if status.http_endpoint else ""
    head = Text(f"{status.router_id} · up {status.uptime_s:.0f} s{http}", style="bold")
    shown = [worker for worker in status.workers if with_gone or worker.state != "gone"]
    workers = sorted(shown, key=lambda worker: worker.worker_id)
    parts: list[RenderableType] = [head, "", _workers(workers), "", _pages(workers)]
    parts += ["", _places(workers)]
    if any(worker.transports for worker in workers):
        parts += ["", _transports(workers)]
    if status.requests:
        parts += ["", _requests(status.requests)]
    if counters:
        parts += ["", Text(counters, style="dim")]
    return Group(*parts)


def _workers(workers: Sequence[WorkerInfo]) -> Table:
    table = _table(
        ("worker", "roles", "state", "epoch"),
        ("queued", "rows", "requests", "step ms"),
    )
    for worker in workers:
        table.add_row(
            worker.worker_id,
            "+".join(worker.roles),
            Text(_state(worker), style=_STATE_STYLE.get(worker.state, "")),
            f"{worker.epoch:016x}"[:_EPOCH_SHOWN],
            str(worker.prefill_queue + worker.decode_queue),
            str(worker.rows),
            str(worker.requests),
            f"{worker.step_s * 1000:.1f}",
        )
    return table


def _state(worker: WorkerInfo) -> str:
    """alive · suspect: a step of 12 s"""
    return (
        f"{worker.state}: a step of {worker.step_age_s:.0f} s" if worker.is_stuck else worker.state
    )


def _places(workers: Sequence[WorkerInfo]) -> Table:
    table = _table(("computes", "of pool", "on"), ())
    for worker in workers:
        table.add_row(worker.worker_id, worker.pool, _devices(worker.devices))
    return table


def _devices(names: Sequence[str]) -> str:
    """cpu · cpu x2 · GPU-1b2c3d4e GPU-5f6a7b8c, of a UUID as much as tells GPUs apart"""
    short = [name[:_UUID_SHOWN] if name.startswith("GPU-") else name for name in names]
    alike = len(short) > 1 and len({*short}) == 1
    return f"{short[0]} x{len(short)}" if alike else " ".join(short)


def _transports(workers: Sequence[WorkerInfo]) -> Table:
    """Pages of each pair; what the better transports failed of, where one did."""
    table = _table(("pages between", "and", "by", "instead of"), ())
    for worker in workers:
        for peer in worker.transports:
            style = "yellow" if peer.instead_of else ""
            cells = (worker.worker_id, peer.peer, peer.transport, peer.instead_of)
            table.add_row(*(Text(cell, style=style) for cell in cells))
    return table


def _pages(workers: Sequence[WorkerInfo]) -> Table:
    table = _table(("pages of",), ("used", "pinned", "cached", "free", "quarantined", "total"))
    for worker in workers:
        pages = worker.pages
        table.add_row(
            worker.worker_id,
            *(str(n) for n in (pages.used, pages.pinned, pages.cached, pages.free)),
            Text(str(pages.quarantined), style="red" if pages.quarantined else ""),
            str(pages.total),
        )
    return table


def _requests(requests: tuple[RequestInfo, ...]) -> Table:
    table = _table(
        ("request", "state", "prefill", "decode"), ("attempt", "prompt", "output", "age s")
    )
    for request in requests[:MAX_REQUESTS_SHOWN]:
        table.add_row(
            request.request_id,
            request.state,
            request.prefill_worker,
            request.decode_worker,
            str(request.attempt),
            str(request.prompt_tokens),
            str(request.output_tokens),
            f"{request.age_s:.1f}",
        )
    if len(requests) > MAX_REQUESTS_SHOWN:
        table.add_row(f"… {len(requests) - MAX_REQUESTS_SHOWN} more")
    return table


def _table(words: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in words:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table
