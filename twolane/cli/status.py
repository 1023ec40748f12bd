"""`twolane status` and `twolane models`: what a cluster consists of, and what it serves."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from twolane.admin import AdminClient
from twolane.cli.common import (
    admin_client,
    client,
    emit,
    json_option,
    operator,
    operator_at_port,
    operator_option,
    print_json,
)
from twolane.cli.ops.output import print_message
from twolane.cli.patience import Patient, watch_on_screen
from twolane.cli.rows import EPOCH_SHOWN, Rows
from twolane.client import Client
from twolane.service_status import ServiceStatus
from twolane.status import (
    ClusterStatus,
    HostInfo,
    RequestInfo,
    RouterInfo,
    TenantInfo,
    WorkerInfo,
)
from twolane.v1 import cluster_pb2

WATCH_EVERY_S = 0.5
MAX_REQUESTS_SHOWN = 20
_UUID_SHOWN = 12
_STATE_STYLE = {"alive": "green", "suspect": "yellow", "draining": "yellow", "gone": "red"}


@click.command()
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C; with --json: a line each.")
@click.option("--all", "with_gone", is_flag=True, help="Show workers that are gone, too.")
@json_option
@operator_option
def status(*, watch: bool, with_gone: bool, as_json: bool, endpoint: str | None) -> None:
    """Show workers, pages by state and requests.

    At the clients' HOST:PORT of a cluster that is not yours, or not on this machine, it shows only
    what clients may see.
    """
    with contextlib.ExitStack() as stack:
        admin = admin_client(endpoint) or operator_at_port(endpoint)
        patient: Patient[Any] = stack.enter_context(
            Patient(client(endpoint), partial(client, endpoint))
            if admin is None
            else Patient(admin, partial(operator, endpoint))
        )
        if as_json and watch:
            with contextlib.suppress(KeyboardInterrupt):
                while True:
                    _print_json(patient.look(_for_programs), in_one_line=True)
                    time.sleep(WATCH_EVERY_S)
        elif as_json:
            _print_json(patient.look(_for_programs), in_one_line=False)
        elif not watch:
            emit(_rendered(patient.look(_status), with_gone=with_gone))
        else:
            watch_on_screen(
                patient, lambda its: _rendered(_status(its), with_gone=with_gone), WATCH_EVERY_S
            )


def _status(its: AdminClient | Client) -> ClusterStatus | ServiceStatus:
    return its.status()


def _for_programs(
    its: AdminClient | Client,
) -> cluster_pb2.GetClusterStatusResponse | ServiceStatus:
    """An operator's as the message that routers answer."""
    if isinstance(its, Client):
        return its.status()
    asked = cluster_pb2.GetClusterStatusRequest()
    found: cluster_pb2.GetClusterStatusResponse = its.call("GetClusterStatus", asked)
    return found


def _print_json(
    found: cluster_pb2.GetClusterStatusResponse | ServiceStatus, *, in_one_line: bool
) -> None:
    if isinstance(found, ServiceStatus):
        print_json(found, schema="twolane.ServiceStatus", indent=None if in_one_line else 2)
    else:
        print_message(found, in_one_line=in_one_line)


def _rendered(status: ClusterStatus | ServiceStatus, *, with_gone: bool) -> RenderableType:
    if isinstance(status, ServiceStatus):
        return render_service(status)
    return render(status, with_gone=with_gone)


def render_service(status: ServiceStatus) -> RenderableType:
    """The status for clients, as text."""
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
    # late messages of ended requests are not worth a line; --json has them
    counters = "  ".join(f"{name} {n}" for name, n in counted if not name.startswith("dropped."))
    http = f" · {status.http_url}/v1" if status.http_url else ""
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
        parts += [Text(lost_with_pod(host), style="red") for host in status.hosts if host.lost]
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
    """Text such as `alive` or `suspect: a step of 12 s`."""
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
        state = f"{host.state}, cordoned" if host.cordoned else host.state
        table.add_row(host.name, Text(state, style=style), its, f"{host.for_s:.0f}")
    return table


def lost(host: HostInfo) -> str:
    """Text such as `lost 2 GPUs since 4 min (node-b silent; no fence command)`."""
    n, what = (host.gpus, "GPU") if host.gpus else (len(host.workers), "seat")
    since = f"{host.for_s / 60:.0f} min" if host.for_s >= 60 else f"{host.for_s:.0f} s"
    note = f"; {host.note}" if host.note else ""
    return f"lost {n} {what}{'s' * (n != 1)} since {since} ({host.name} {host.state}{note})"


def lost_with_pod(host: HostInfo) -> str:
    """Of workers that ran in a pod that was replaced, and may run there still."""
    names = ", ".join(host.lost)
    return (
        f"lost {names} with an earlier pod of {host.name}: if nothing runs there, "
        f"twolane fence --host {host.name} --i-saw-it-off"
    )


def _devices(names: Sequence[str]) -> str:
    """Text such as `cpu`, `cpu x2` or `GPU-1b2c3d4e GPU-5f6a7b8c`: enough of each UUID to tell GPUs
    apart."""
    short = [name[:_UUID_SHOWN] if name.startswith("GPU-") else name for name in names]
    alike = len(short) > 1 and len({*short}) == 1
    return f"{short[0]} x{len(short)}" if alike else " ".join(short)


def _transports(workers: Sequence[WorkerInfo]) -> Rows:
    """The transport of each pair, and why better ones failed, if they did."""
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
