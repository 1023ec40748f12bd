"""`twolane top`: shows slow workers, and whether prefill or decode is the bottleneck."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import click
from rich.console import Group, RenderableType
from rich.text import Text

from twolane.admin import AdminClient
from twolane.cli.common import console, emit, json_option, operator, operator_option
from twolane.cli.ops.output import (
    STATE_STYLE,
    count,
    missing,
    print_message,
    quiet_option,
    report,
    rollout_in_words,
    seconds,
    share,
)
from twolane.cli.patience import Patient, watch_on_screen
from twolane.cli.rows import Rows
from twolane.status import ROLE_NAMES
from twolane.v1 import cluster_pb2, worker_pb2

_EVERY_S = 2.0
_FULL = 0.9  # of a decode worker's pages
_SLOW_TIMES = 3  # as slow as the median of its role
_BAD_STATES = ("suspect", "gone")
P, D = worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE


@click.command()
@click.option("--once", is_flag=True, help="Show it once, as into a pipe.")
@quiet_option
@json_option
@operator_option
def top(*, once: bool, quiet: bool, as_json: bool, endpoint: str | None) -> None:
    """Watch the workers, those under most pressure first, until Ctrl-C.

    It shows tokens per second, the duration of steps, the wait of prompts, and the share of pages
    in use.
    """
    with Patient(operator(endpoint), partial(operator, endpoint)) as patient:
        if not (as_json or quiet or once) and console().is_terminal:
            watch_on_screen(patient, lambda admin: render(_look(admin)), _EVERY_S)
            return
        status = patient.look(_look)
    if as_json:
        print_message(status)
    elif quiet:
        for worker in _worst_first(status):
            click.echo(worker.worker.worker_id)
    else:
        emit(render(status))


def _look(admin: AdminClient) -> cluster_pb2.GetClusterStatusResponse:
    status: cluster_pb2.GetClusterStatusResponse = admin.call(
        "GetClusterStatus", cluster_pb2.GetClusterStatusRequest(without_requests=True)
    )
    return status


def render(status: cluster_pb2.GetClusterStatusResponse) -> Group:
    """The line that says so what, sizes of pools, then workers."""
    workers = _worst_first(status)
    parts: list[RenderableType] = [Text(_head(status), style="dim")]
    if status.HasField("rollout") and status.rollout.state not in ("done", "undone"):
        parts.append(Text(f"rollout {rollout_in_words(status.rollout)}", style="yellow"))
    if status.pools:
        parts.append(_pools(status))
    if workers:
        parts.append(_workers(workers))
    parts += missing(router for router in status.routers if router.unreached)
    return report(so_what(status), *parts)


def so_what(status: cluster_pb2.GetClusterStatusResponse) -> str:
    """prefill is the bottleneck: prompts wait 0.8 s, decode is 41 % full"""
    here = [worker for worker in status.workers if worker.state != "gone"]
    bad = [worker.worker.worker_id for worker in here if worker.state == "suspect"]
    slow = _slow(here)
    queued = status.requests_by_state.get("queued", 0) + status.requests_by_state.get("resuming", 0)
    waiting = f"{count(queued, 'request')} wait{'s' * (queued == 1)}"
    prefill = [worker for worker in here if P in worker.roles]
    decode = [worker for worker in here if D in worker.roles]
    if not (prefill and decode):
        role = "prefill" if not prefill else "decode"
        return f"nothing is served: there is no {role} worker; {waiting}"
    wait_s = max(_wait_s(worker) for worker in prefill)
    open_ones = [worker for worker in decode if worker.state != "draining"] or decode
    full = sum(map(_held, open_ones)) / len(open_ones)
    if full >= _FULL:
        text = f"decode is the bottleneck: its pages are {share(full, 1)} held"
    elif wait_s < 0.5 and queued:
        text = f"requests wait for a place: decode is {share(full, 1)} full, prompts wait "
        text += seconds(wait_s)
    elif wait_s >= 0.5:
        text = f"prefill is the bottleneck: prompts wait {seconds(wait_s)}"
        text += f", decode is {share(full, 1)} full"
    else:
        text = f"there is room: decode is {share(full, 1)} full, no prompt waits"
    if queued:
        text += f"; {waiting} at routers"
    if slow:
        text += f"; slow: {', '.join(slow)}"
    if bad:
        text += f"; not heard: {', '.join(bad)}"
    return text


def _head(status: cluster_pb2.GetClusterStatusResponse) -> str:
    prompts = sum(worker.load.prefill_tokens_per_s for worker in status.workers)
    answers = sum(worker.load.decode_tokens_per_s for worker in status.workers)
    n_live = sum(status.requests_by_state.values())
    return (
        f"{count(len(status.routers), 'router')} · {count(n_live, 'request')} · prompts "
        f"{prompts:.0f} tokens/s · answers {answers:.0f} tokens/s"
    )


def _worst_first(
    status: cluster_pb2.GetClusterStatusResponse,
) -> list[cluster_pb2.WorkerStatus]:
    here = [worker for worker in status.workers if worker.state != "gone"]
    slow = _slow(here)

    def rank(worker: cluster_pb2.WorkerStatus) -> tuple[bool, bool, float, str]:
        name = worker.worker.worker_id
        pressure = max(_held(worker), _wait_s(worker))
        return worker.state not in _BAD_STATES, name not in slow, -pressure, name

    return sorted(here, key=rank)


def _slow(workers: Sequence[cluster_pb2.WorkerStatus]) -> list[str]:
    """Whose steps take far longer than those of most workers of the same roles, or do not end."""
    steps: dict[tuple[int, ...], list[float]] = {}  # by roles
    for worker in workers:
        steps.setdefault(tuple(worker.roles), []).append(worker.load.step_p50_s)
    usually = {roles: sorted(alike)[(len(alike) - 1) // 2] for roles, alike in steps.items()}
    found = []
    for worker in workers:
        load, alike = worker.load, steps[tuple(worker.roles)]
        usual = usually[tuple(worker.roles)]
        is_stuck = load.step_age_s > load.step_bound_s > 0
        if is_stuck or (len(alike) > 1 and load.step_p50_s > _SLOW_TIMES * usual > 0):
            found.append(worker.worker.worker_id)
    return found


def _wait_s(worker: cluster_pb2.WorkerStatus) -> float:
    """How long its queue of prompts takes at the pace of the last seconds."""
    load = worker.load
    if not load.prefill_queue_tokens:
        return 0.0
    return load.prefill_queue_tokens / max(load.prefill_tokens_per_s, 1.0)


def _held(worker: cluster_pb2.WorkerStatus) -> float:
    pages = worker.load.pages
    held = pages.used + pages.pinned + pages.quarantined
    total = held + pages.cached + pages.free
    return held / total if total else 0.0


def _workers(workers: Sequence[cluster_pb2.WorkerStatus]) -> Rows:
    has_hosts = any(worker.host for worker in workers)
    slow = _slow(workers)
    table = Rows(
        ["worker", "roles", "state", *["host"] * has_hosts],
        ("waits", "rows", "held", "tokens/s", "step", "p99"),
    )
    for worker in workers:
        load, name = worker.load, worker.worker.worker_id
        is_stuck = load.step_age_s > load.step_bound_s > 0
        state = f"{worker.state}: a step of {seconds(load.step_age_s)}" * is_stuck or worker.state
        is_slow = name in slow and not is_stuck
        style = "red" if is_stuck else "yellow" if is_slow else STATE_STYLE.get(worker.state, "")
        rate = load.prefill_tokens_per_s + load.decode_tokens_per_s
        table.add_row(
            name,
            "+".join(ROLE_NAMES.get(role, str(role)) for role in worker.roles),
            Text(f"{state}, slow" if is_slow else state, style=style),
            *[worker.host] * has_hosts,
            seconds(_wait_s(worker)) if P in worker.roles else "",
            str(load.rows) if D in worker.roles else "",
            Text(share(_held(worker), 1), style="red" if _held(worker) >= _FULL else ""),
            f"{rate:.0f}",
            seconds(load.step_p50_s or load.step_s),
            seconds(load.step_p99_s),
        )
    return table


def _pools(status: cluster_pb2.GetClusterStatusResponse) -> Rows:
    mode = status.scaler.mode
    usually = "the scaler" if mode == "on" else f"the scaler ({mode})" if mode else "the topology"
    table = Rows(("pool", "sized by"), ("alive", "wanted", "starting", "draining", "GPUs"))
    for pool in status.pools:
        by = "an operator" if pool.pinned else usually
        if pool.pinned and pool.pinned_for_s:
            by += f", for {seconds(pool.pinned_for_s)}"
        numbers = (pool.alive, pool.workers, pool.starting, pool.draining)
        gpus = pool.workers * pool.gpus_a_worker
        table.add_row(pool.pool, by, *map(str, numbers), str(gpus) if gpus else "")
    return table
