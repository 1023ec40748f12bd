"""`twolane pages`: shows the KV pages by worker, state and row."""

from __future__ import annotations

import click
from rich.console import RenderableType
from rich.text import Text

from twolane.attempt_number import try_of
from twolane.cli.common import emit, json_option, operator, operator_option
from twolane.cli.completion import workers
from twolane.cli.ops.output import (
    ID_SHOWN,
    count,
    missing,
    print_message,
    quiet_option,
    report,
    share,
)
from twolane.cli.rows import Rows
from twolane.v1 import admin_pb2

_FAULTY, _NOT_PROVEN = 1, 5  # exit codes: a table is inconsistent, a process has not answered


@click.command()
@click.option("--worker", "worker_id", default="", shell_complete=workers, help="Only this worker.")
@click.option(
    "--check",
    is_flag=True,
    help="Have processes check their tables; exit with 1 if one is inconsistent, and with 5 if a "
    "process has not answered.",
)
@click.option("--rows", type=click.IntRange(0, 1_000), default=5, show_default=True)
@quiet_option
@json_option
@operator_option
@click.pass_context
def pages(
    context: click.Context,
    *,
    worker_id: str,
    check: bool,
    rows: int,
    quiet: bool,
    as_json: bool,
    endpoint: str | None,
) -> None:
    """Count the KV pages of each worker by state, and show the rows that hold most.

    With --check, every worker and router checks that its tables are consistent.
    """
    asked = admin_pb2.GetPagesRequest(worker_id=worker_id, check=check, rows=rows or 1)
    with operator(endpoint) as admin:
        found: admin_pb2.GetPagesResponse = admin.call("GetPages", asked)
    faults = faults_of(found)
    if as_json:
        print_message(found)
    elif quiet:
        for its in found.workers:
            click.echo(its.worker.worker_id)
    else:
        style = "bold red" if faults else "bold"
        parts: list[RenderableType] = [Text(fault, style="red") for fault in faults]
        parts.append(_census(found))
        if rows and any(its.rows for its in found.workers):
            parts.append(_holders(found))
        parts += missing(found.unreached)
        emit(report(so_what(found, faults), *parts, style=style))
    if faults:
        context.exit(_FAULTY)
    if check and (found.unreached or any(its.unreached for its in found.workers)):
        context.exit(_NOT_PROVEN)


def faults_of(found: admin_pb2.GetPagesResponse) -> list[str]:
    """The errors that the checks have found, by process."""
    workers = [
        f"{its.worker.worker_id}: {its.integrity_error}"
        for its in found.workers
        if its.integrity_error
    ]
    return workers + [f"{its.router_id}: {its.error}" for its in found.routers if its.error]


def so_what(found: admin_pb2.GetPagesResponse, faults: list[str]) -> str:
    silent = [its.worker.worker_id for its in found.workers if its.unreached]
    if faults:
        return f"tables are off: {', '.join(fault.partition(':')[0] for fault in faults)}"
    if not found.workers:
        return "there is no worker"
    fullest = max(found.workers, key=_busy)
    busy = share(_busy(fullest), 1.0)
    text = f"{fullest.worker.worker_id} is the fullest: {busy} of its pages are held"
    closed = sum(its.pages.quarantined for its in found.workers)
    if closed:
        text += f"; {count(closed, 'page')} wait in quarantine for a proof of death"
    checked = [its for its in found.workers if its.checked]
    if checked:
        text += f"; {count(len(checked) + len(found.routers), 'check')} held"
    if silent:
        text += f"; not asked: {', '.join(silent)}"
    return text


def _busy(its: admin_pb2.WorkerPages) -> float:
    held = its.pages.used + its.pages.pinned + its.pages.quarantined
    return held / its.total if its.total else 0.0


def _census(found: admin_pb2.GetPagesResponse) -> Rows:
    """The table of pages, the fullest worker first."""
    names = ("used", "pinned", "cached", "free", "quarantined")
    table = Rows(("worker", "state"), (*names, "total", "held"))
    for its in sorted(found.workers, key=lambda each: (-_busy(each), each.worker.worker_id)):
        said = (its.integrity_error and "off") or ("holds" if its.checked else "")
        word = Text(f"old: {its.unreached}", style="yellow") if its.unreached else Text(said)
        numbers = [str(getattr(its.pages, name)) for name in names]
        closed = Text(numbers.pop(), style="red" if its.pages.quarantined else "")
        held = share(_busy(its), 1.0)
        table.add_row(its.worker.worker_id, word, *numbers, closed, str(its.total), held)
    return table


def _holders(found: admin_pb2.GetPagesResponse) -> Rows:
    table = Rows(("worker", "id", "request", "state"), ("try", "tokens", "pages"))
    for its in found.workers:
        for row in its.rows:
            table.add_row(
                its.worker.worker_id,
                row.submission_id[:ID_SHOWN],
                row.request_id,
                row.state,
                str(try_of(row.attempt)),
                str(row.tokens),
                str(row.pages),
            )
        if its.rows_left_out:
            table.add_row(its.worker.worker_id, f"… {its.rows_left_out} more")
    return table
