"""`twolane doctor`: what is wrong with the cluster, and the line that mends it."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.console import RenderableType
from rich.text import Text

from twolane.cli.common import json_option, operator, operator_option
from twolane.cli.ops.output import count, missing, print_message, show
from twolane.v1 import admin_pb2

_FOUND = 1  # exit code: there is a fault
_WORDS = {
    admin_pb2.Finding.SEVERITY_FAULT: ("fault", "red"),
    admin_pb2.Finding.SEVERITY_WARNING: ("warning", "yellow"),
    admin_pb2.Finding.SEVERITY_NOTE: ("note", "dim"),
}


@click.command()
@click.option("--check", "checks", multiple=True, metavar="NAME", help="Only that; repeatable.")
@json_option
@operator_option
def doctor(*, checks: Sequence[str], as_json: bool, endpoint: str | None) -> None:
    """Show what is wrong with the cluster, worst first, each with the command that fixes it.

    Exits with 1 if there is a fault.
    """
    with operator(endpoint) as admin:
        found = admin.call("Diagnose", admin_pb2.DiagnoseRequest(checks=checks))
    if as_json:
        print_message(found)
    else:
        show(_so_what(found), *map(_told, found.findings), *missing(found.unreached))
    if any(its.severity == admin_pb2.Finding.SEVERITY_FAULT for its in found.findings):
        raise SystemExit(_FOUND)


def _so_what(found: admin_pb2.DiagnoseResponse) -> str:
    of = f"{count(len(found.checks), 'check')} of {count(len(found.processes), 'process')}"
    of = of.replace("processs", "processes")
    if not found.findings:
        return f"nothing is wrong: {of}"
    worst = found.findings[0]
    return f"{worst.subject}: {worst.text} ({count(len(found.findings), 'finding')}; {of})"


def _told(finding: admin_pb2.Finding) -> RenderableType:
    word, style = _WORDS[finding.severity]
    return Text.assemble(
        (f"{word} ", style), (f"{finding.check} ", "dim"), f"{finding.subject}: {finding.text}",
        ("\n  mend: ", "dim"), finding.mend,
    )  # fmt: skip
