"""`twolane status`: workers, pages, requests."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from twolane.cli.common import (
    admin_client,
    client,
    console,
    json_option,
    operator_option,
    print_json,
)
from twolane.cli.rows import Rows
from twolane.service_status import ServiceStatus
from twolane.status import (
    ClusterStatus,
    HostInfo,
    RequestInfo,
    RouterInfo,
    TenantInfo,
    WorkerInfo,
)

WATCH_EVERY_S = 0.5
MAX_REQUESTS_SHOWN = 20
EPOCH_SHOWN = 8  # digits: tells a worker from itself before a restart
_UUID_SHOWN = 12
_STATE_STYLE = {"alive": "green", "suspect": "yellow", "draining": "yellow", "gone": "red"}


@click.command()
@click.option("--watch", is_flag=True, help="Keep looking until Ctrl-C.")
@click.option("--all", "with_gone", is_flag=True, help="Workers that are gone, too.")
@json_option
@operator_option
def status(*, watch: bool, with_gone: bool, as_json: bool, endpoint: str | None) -> None:
    """Show workers, pages by state and requests.

    At HOST:PORT, where clients come in, it shows what clients may know.
    """
    with contextlib.ExitStack() as stack:
        admin = admin_client(endpoint)
        look: Callable[[], ClusterStatus | ServiceStatus]
        if admin is not None:
            look = stack.enter_context(admin).status
        else:
            look = stack.enter_context(client(endpoint)).status
        if as_json:
            print_json(look())
        elif not watch:
            console().print(_rendered(look(), with_gone=with_gone))
        else:
            first = _rendered(look(), with_gone=with_gone)
            with Live(first, console=console(), screen=True) as live:
                try:
                    while True:
                        time.sleep(WATCH_EVERY_S)
                        live.update(_rendered(look(), with_gone=with_gone))
                except KeyboardInterrupt:
                    return


def _rendered(status: ClusterStatus | ServiceStatus, *, with_gone: bool) -> RenderableType:
    if isinstance(status, ServiceStatus):
        return render_service(status)
    return render(status, with_gone=with_gone)


def render_service(status: ServiceStatus) -> RenderableType:
    """What clients may know."""
    models = ", ".join(model.name for model in status.models) or "no model"
    head = Text(f"{'serves' if status.serving else 'does not serve'} {models}", style="bold")
    table = Rows(("role", "state"), ("workers",))
    for count in status.workers:
        style = _STATE_STYLE.get(count.state, "")
        table.add_row(count.role, Text(count.state, style=style), str(count.workers))
    return Group(head, "", table)


def render(status: ClusterStatus, *, with_gone: bool = False) -> RenderableType:
    """The status as tables."""
    counted = sorted((name, n) for name, n in status.counters.items() if n)
    # late messages of requests that have ended are no news; --json has them
    counters = "  ".join(f"{name} {n}" for name, n in counted if not name.startswith("dropped."))
    http = f" · http://{status.http_endpoint}/v1" if status.http_endpoint else ""
    head = Text(f"{status.router_id} · up {status.uptime_s:.0f} s{http}", style="bold")
    shown = [worker for worker in status.workers if with_gone or worker.state != "gone"]
    workers = sorted(shown, key=lambda worker: worker.worker_id)
    parts: list[RenderableType] = [head]
    if status.insecure_listeners:
        text = f"without TLS, reached from other machines: {', '.join(status.insecure_listeners)}"
        parts.append(Text(text, style="bold red"))
    if status.store is not None and not status.store.up:
        store = status.store
        parts.append(Text(f"the store at {store.address} is down: {store.note}", style="yellow"))
    if len(status.routers) > 1:
        parts += ["", _routers(status.routers)]
    parts += ["", _workers(workers), "", _pages(workers)]
    parts += ["", _places(workers)]
    if status.hosts:
        parts += ["", _hosts(status.hosts)]
        parts += [Text(lost(host), style="red") for host in status.hosts if host.state != "up"]
    if any(worker.transports for worker in workers):
        parts += ["", _transports(workers)]
    if any(tenant.tenant for tenant in status.tenants):
        parts += ["", _tenants(status.tenants)]
    if status.requests:
        parts += ["", _requests(status.requests)]
    if counters:
        parts += ["", Text(counters, style="dim")]
    return Group(*parts)


def _routers(routers: Sequence[RouterInfo]) -> Rows:
    table = Rows(("router", "state", "clients", "HTTP"), ("requests", "up s"))
    for router in routers:
        state = Text(router.unreached or "serves", style="yellow" if router.unreached else "green")
        figures = ("", "") if router.unreached else (router.requests, f"{router.uptime_s:.0f}")
        doors = (router.endpoint, router.http_endpoint)
        table.add_row(router.router_id, state, *doors, *map(str, figures))
    return table


def _workers(workers: Sequence[WorkerInfo]) -> Rows:
    table = Rows(
        ("worker", "roles", "state", "epoch"),
        ("queued", "rows", "requests", "step ms"),
    )
    for worker in workers:
        table.add_row(
            worker.worker_id,
            "+".join(worker.roles),
            Text(_state(worker), style=_STATE_STYLE.get(worker.state, "")),
            f"{worker.epoch:016x}"[:EPOCH_SHOWN],
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


def _places(workers: Sequence[WorkerInfo]) -> Rows:
    table = Rows(("worker", "pool", "host", "devices"), ())
    for worker in workers:
        table.add_row(worker.worker_id, worker.pool, worker.host, _devices(worker.devices))
    return table


def _hosts(hosts: Sequence[HostInfo]) -> Rows:
    table = Rows(("host", "state", "workers"), ("for s",))
    for host in hosts:
        style = {"up": "green", "silent": "red"}.get(host.state, "yellow")
        its = " ".join(host.workers)
        table.add_row(host.name, Text(host.state, style=style), its, f"{host.for_s:.0f}")
    return table


def lost(host: HostInfo) -> str:
    """lost 2 GPUs since 4 min (node-b silent; no fence command)"""
    n, what = (host.gpus, "GPU") if host.gpus else (len(host.workers), "seat")
    since = f"{host.for_s / 60:.0f} min" if host.for_s >= 60 else f"{host.for_s:.0f} s"
    note = f"; {host.note}" if host.note else ""
    return f"lost {n} {what}{'s' * (n != 1)} since {since} ({host.name} {host.state}{note})"


def _devices(names: Sequence[str]) -> str:
    """cpu · cpu x2 · GPU-1b2c3d4e GPU-5f6a7b8c, of a UUID as much as tells GPUs apart"""
    short = [name[:_UUID_SHOWN] if name.startswith("GPU-") else name for name in names]
    alike = len(short) > 1 and len({*short}) == 1
    return f"{short[0]} x{len(short)}" if alike else " ".join(short)


def _transports(workers: Sequence[WorkerInfo]) -> Rows:
    """How each pair moves pages; what the better transports failed of, where one did."""
    table = Rows(("worker", "peer", "transport", "instead of"), ())
    for worker in workers:
        for peer in worker.transports:
            style = "yellow" if peer.instead_of else ""
            cells = (worker.worker_id, peer.peer, peer.transport, peer.instead_of)
            table.add_row(*(Text(cell, style=style) for cell in cells))
    return table


def _pages(workers: Sequence[WorkerInfo]) -> Rows:
    table = Rows(("pages of",), ("used", "pinned", "cached", "free", "quarantined", "total"))
    for worker in workers:
        pages = worker.pages
        table.add_row(
            worker.worker_id,
            *(str(n) for n in (pages.used, pages.pinned, pages.cached, pages.free)),
            Text(str(pages.quarantined), style="red" if pages.quarantined else ""),
            str(pages.total),
        )
    return table


def _tenants(tenants: Sequence[TenantInfo]) -> Rows:
    table = Rows(
        ("tenant", "in metrics"),
        ("weight", "live", "requests", "refused", "prompt tokens", "output tokens"),
    )
    for tenant in tenants:
        figures = (tenant.live, tenant.requests, tenant.refused)
        tokens = (tenant.prompt_tokens, tenant.output_tokens)
        numbers = (f"{tenant.weight:g}", *map(str, figures), *map(str, tokens))
        table.add_row(tenant.tenant or "(none)", tenant.label, *numbers)
    return table


def _requests(requests: tuple[RequestInfo, ...]) -> Rows:
    table = Rows(
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
