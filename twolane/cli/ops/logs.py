"""`twolane logs`: the last lines of a process's log."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import dropwhile

import click

from twolane.admin import AdminClient
from twolane.cli.common import json_option, operator, operator_option
from twolane.cli.completion import workers
from twolane.cli.ops.output import print_message
from twolane.cli.patience import Patient
from twolane.v1 import acts_pb2

_FOLLOW_S = 1.0
_MOST = 2_000
_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}")  # begins each record


@click.command()
@click.argument("name", metavar="PROCESS", shell_complete=workers)
@click.option("-n", "--lines", type=click.IntRange(1, _MOST), default=100, show_default=True)
@click.option("--follow", is_flag=True, help="Show new lines until Ctrl-C.")
@click.option("--file", "from_file", is_flag=True, help="Read its log file.")
@json_option
@operator_option
def logs(
    name: str, *, lines: int, follow: bool, from_file: bool, as_json: bool, endpoint: str | None
) -> None:
    """Show the last lines that a worker or router has logged.

    Each running process keeps its last 2,000 lines. The log of one that has ended is read from its
    file, by the agent of its host or by the launcher; with --file, so is that of a running one, as
    the file has older lines, and those of its earlier incarnations. With --follow, a line says
    where what follows is from, whenever that changes.
    """
    shown: deque[str] = deque(maxlen=_MOST)
    asked = acts_pb2.ReadLogRequest(name=name, lines=lines, from_file=from_file)

    def read(admin: AdminClient) -> acts_pb2.ReadLogResponse:
        found: acts_pb2.ReadLogResponse = admin.call("ReadLog", asked)
        return found

    with Patient(operator(endpoint), partial(operator, endpoint)) as patient:
        while True:
            found = patient.look(read)
            if found.source != asked.source:
                if not found.source.startswith(f"{name} "):
                    click.echo(f"from its log file, read by {found.source}:", err=True)
                elif asked.source:
                    click.echo(f"from {found.source}:", err=True)
                found.lines[:] = unseen([*found.lines], shown)
            shown += found.lines
            if as_json:
                print_message(found, in_one_line=follow)
            else:
                for line in found.lines:
                    click.echo(line)
            if not follow:
                return
            asked.after_line, asked.source, asked.lines = found.last_line, found.source, _MOST
            time.sleep(_FOLLOW_S)


def unseen(lines: Sequence[str], shown: Sequence[str]) -> Sequence[str]:
    """Those of `lines` that are not `shown`, from another source: a process's memory and its file
    have the same records. Without any of these, those that are later than what is shown."""
    stamped = [at for at, line in enumerate(shown) if _STAMP.match(line)]
    if not stamped:
        return lines
    places = {line: at for at, line in enumerate(lines)}
    for at in reversed(stamped):
        if shown[at] in places:
            new, begun = lines[places[shown[at]] + 1 :], [*shown][at + 1 :]
            n = 0  # further lines of that record
            while n < min(len(new), len(begun)) and new[n] == begun[n]:
                n += 1
            return new[n:]
    last = max(_stamp(shown[at]) for at in stamped)
    return [*dropwhile(lambda line: _stamp(line) <= last, lines)]


def _stamp(line: str) -> str:
    """Empty in a line that goes on with a record."""
    found = _STAMP.match(line)
    return found[0] if found else ""
