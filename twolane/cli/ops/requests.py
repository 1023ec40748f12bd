"""`twolane requests`: lists, traces and cancels requests. Prompts and answers are never shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import RenderableType
from rich.text import Text

from twolane.admin import AdminClient
from twolane.cli.common import emit, json_option, operator, operator_option
from twolane.cli.ops.acting import act_options, new_act
from twolane.cli.ops.changing import confirm, in_words
from twolane.cli.ops.output import (
    ID_SHOWN,
    count,
    facts,
    missing,
    print_message,
    quiet_option,
    report,
    seconds,
    show,
    state,
)
from twolane.cli.ops.trace import Bars, marks_table, perfetto, so_what
from twolane.cli.rows import Rows
from twolane.cli.times import Seconds
from twolane.errors import InvalidRequestError
from twolane.v1 import admin_pb2, cluster_pb2

_STATES = ("queued", "running", "resuming", "ending", "finished", "failed", "cancelled")
_MOST_A_PAGE = 1_000


@click.group()
def requests() -> None:
    """List requests, trace one through the cluster, or cancel them."""


@requests.command("list")
@click.option("--state", "states", multiple=True, type=click.Choice(_STATES))
@click.option("--tenant", default="")
@click.option(
    "--worker", "worker_id", default="", help="Only requests at this worker, in either role."
)
@click.option("--model", default="")
@click.option("--older-than", "older_than_s", type=Seconds(), default=0.0, metavar="SECONDS")
@click.option("--ended", is_flag=True, help="List recently ended requests, the latest first.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, metavar="N")
@quiet_option
@json_option
@operator_option
def list_requests(
    *,
    states: Sequence[str],
    tenant: str,
    worker_id: str,
    model: str,
    older_than_s: float,
    ended: bool,
    limit: int,
    quiet: bool,
    as_json: bool,
    endpoint: str | None,
) -> None:
    """List the running and waiting requests of all routers, the oldest first."""
    asked = admin_pb2.ListRequestsRequest(
        states=states,
        tenant=tenant,
        worker_id=worker_id,
        model=model,
        older_than_s=older_than_s,
        ended=ended,
    )
    with operator(endpoint) as admin:
        page = _up_to(admin, asked, limit)
    if as_json:
        print_message(page)
    elif quiet:
        for status in page.requests:
            click.echo(status.submission_id)
    else:
        table = _table(page.requests, ended=ended)
        parts = [table] if page.requests else []
        is_filtered = bool(states or tenant or worker_id or model or older_than_s)
        head = _so_what(page, ended=ended, is_filtered=is_filtered)
        show(head, *parts, *missing(page.unreached))


@requests.command("show")
@click.argument("request_id", metavar="ID")
@json_option
@operator_option
def show_request(request_id: str, *, as_json: bool, endpoint: str | None) -> None:
    """Show a request that runs or has ended recently.

    ID is a submission id, its beginning, or the client's request id.
    """
    with operator(endpoint) as admin:
        found = _find(admin, request_id)
    if as_json:
        print_message(found)
        return
    trace, status = found.trace, found.trace.request
    parts = [_heading(status), facts(_facts(trace)), *_others(found), *missing(found.unreached)]
    show(so_what(trace), *parts)


@requests.command("trace")
@click.argument("request_id", metavar="ID")
@click.option(
    "--perfetto",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write a trace file for ui.perfetto.dev.",
)
@json_option
@operator_option
def trace_request(
    request_id: str, *, file: Path | None, as_json: bool, endpoint: str | None
) -> None:
    """Draw how a request's time was spent: queue, prefill, transfer, decode.

    ID is as in `show`.
    """
    with operator(endpoint) as admin:
        found = _find(admin, request_id)
    trace = found.trace
    if file is not None:
        file.write_text(perfetto(trace) + "\n")
    if as_json:
        print_message(found)
        return
    parts: list[RenderableType] = [_heading(trace.request), Bars(trace), marks_table(trace)]
    if trace.dropped_marks:
        parts.append(f"… {count(trace.dropped_marks, 'moment')} in between left out")
    emit(report(so_what(trace), *parts, *_others(found), *missing(found.unreached)))


@requests.command("cancel")
@click.argument("request_ids", metavar="ID...", nargs=-1, required=True)
@act_options
@json_option
@operator_option
def cancel_requests(
    request_ids: Sequence[str],
    *,
    reason: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    endpoint: str | None,
) -> None:
    """Cancel requests of any tenant: their clients get CANCELLED.

    Each ID is as in `show`.
    """
    with operator(endpoint) as admin:
        found = [_only(request_id, _find(admin, request_id)) for request_id in request_ids]
        if not dry_run:
            named = ", ".join(_name(status) for status in found)
            confirm(f"these requests end, with CANCELLED: {named}", yes=yes)
        for status in found:
            asked = admin_pb2.CancelRequestRequest(
                act=new_act(reason, dry_run=dry_run), submission_id=status.submission_id
            )
            done = admin.call("CancelRequest", asked)
            if as_json:
                print_message(done, in_one_line=True)
            else:
                click.echo(in_words(done, f"{_name(status)} has ended already"))


def _up_to(
    admin: AdminClient, asked: admin_pb2.ListRequestsRequest, limit: int
) -> admin_pb2.ListRequestsResponse:
    """Up to `limit` requests, read in as many pages as needed."""
    whole = admin_pb2.ListRequestsResponse()
    while True:
        asked.page_size = min(_MOST_A_PAGE, limit - len(whole.requests))
        asked.page_token = whole.next_page_token
        page: admin_pb2.ListRequestsResponse = admin.call("ListRequests", asked)
        whole.requests.extend(page.requests)
        whole.total, whole.next_page_token = page.total, page.next_page_token
        named = {router.address.router_id for router in whole.unreached}
        whole.unreached.extend(r for r in page.unreached if r.address.router_id not in named)
        if not page.next_page_token or len(whole.requests) >= limit:
            return whole


def _find(admin: AdminClient, request_id: str) -> admin_pb2.GetRequestResponse:
    found: admin_pb2.GetRequestResponse = admin.call(
        "GetRequest", admin_pb2.GetRequestRequest(id=request_id)
    )
    if not found.HasField("trace"):
        unasked = ", ".join(router.address.router_id for router in found.unreached)
        raise InvalidRequestError(
            f"no request {request_id!r} runs, and none that ended lately has that id"
            + (f"; {unasked} did not answer" if unasked else ""),
            field="id",
        )
    return found


def _only(request_id: str, found: admin_pb2.GetRequestResponse) -> cluster_pb2.RequestStatus:
    """The one request that it names. Raises `InvalidRequestError` if others that still run fit."""
    running = [its for its in (found.trace.request, *found.others) if not its.finish]
    if len(running) < 2:
        return running[0] if running else found.trace.request
    names = ", ".join(
        f"{its.submission_id}{f' of tenant {its.tenant}' * bool(its.tenant)}" for its in running
    )
    text = f"{request_id!r} fits several: {names}; name one by its id"
    raise InvalidRequestError(text, field="id")


def _so_what(page: admin_pb2.ListRequestsResponse, *, ended: bool, is_filtered: bool) -> str:
    if not page.requests:
        if ended:
            return "no request has ended lately" + " that matches" * is_filtered
        nobody = "no request waits or runs; --ended lists those that ended lately"
        return "no requests match" if is_filtered else nobody
    n_left = page.total - len(page.requests)
    more = f"; {n_left} more are not shown (--limit)" if n_left else ""
    these = "those shown" if n_left else "these"
    if ended:
        bad = sum(status.finish not in ("stop", "length") for status in page.requests)
        its = f"{count(page.total, 'request')} ended lately"
        return f"{its}, {bad} of {these} without an answer{more}"
    waiting = [status for status in page.requests if status.state in ("queued", "resuming")]
    silent = max(page.requests, key=lambda status: status.silent_s)
    return (
        f"{count(page.total, 'request')}, {len(waiting)} of {these} wait; the longest without a "
        f"token is {_name(silent)}, {silent.state} for {seconds(silent.silent_s)}{more}"
    )


def _table(requests: Sequence[cluster_pb2.RequestStatus], *, ended: bool) -> Rows:
    has_tenants = any(status.tenant for status in requests)
    words = ["id", "request", "state", "prefill", "decode"]
    words += ["tenant"] * has_tenants + ["end"] * ended
    table = Rows(words, ("try", "prompt", "output", "age", "first token", "silent"))
    for status in requests:
        cells: list[str | Text] = [
            status.submission_id[:ID_SHOWN],
            status.request_id,
            state(status.state),
            status.prefill_worker,
            status.decode_worker,
            *[status.tenant] * has_tenants,
            *[status.finish] * ended,
            str(status.attempt),
            str(status.prompt_tokens),
            str(status.output_tokens),
            seconds(status.age_s),
            seconds(status.ttft_s) if status.ttft_s else "",
            seconds(status.silent_s),
        ]
        table.add_row(*cells)
    return table


def _heading(status: cluster_pb2.RequestStatus) -> str:
    parts = [_name(status), status.state, status.model, f"at {status.router_id}"]
    if status.tenant:
        parts.insert(2, f"tenant {status.tenant}")
    return " · ".join(part for part in parts if part)


def _facts(trace: admin_pb2.RequestTrace) -> list[tuple[str, str]]:
    status, ledger = trace.request, trace.ledger
    told = [
        ("submission", status.submission_id),
        ("prefill, decode", f"{status.prefill_worker}, {status.decode_worker}"),
        ("attempts", str(ledger.attempts)),
        ("priority", str(status.priority)),
        ("prompt tokens", f"{status.prompt_tokens} ({ledger.cached_tokens} from the cache)"),
        ("output tokens", str(status.output_tokens)),
        ("first token after", seconds(status.ttft_s) if status.ttft_s else "none yet"),
        ("age", seconds(status.age_s)),
        ("pages moved", f"{ledger.transfer_pages} ({ledger.transfer_bytes} bytes)"),
    ]
    names = ("queued", "prefill_wait", "prefill", "transfer", "decode_wait", "decode")
    told += [(n.replace("_", " "), seconds(getattr(ledger, f"{n}_s"))) for n in names]
    if status.finish:
        told.append(("end", status.finish))
    return told


def _others(found: admin_pb2.GetRequestResponse) -> list[str]:
    if not found.others:
        return []
    names = ", ".join(f"{_name(other)} ({other.state})" for other in found.others)
    return [f"the id also fits {names}"]


def _name(status: cluster_pb2.RequestStatus) -> str:
    short = status.submission_id[:ID_SHOWN]
    return f"{status.request_id} ({short})" if status.request_id else short
