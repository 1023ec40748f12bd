"""A request's trace as bars in the terminal, and as a file for ui.perfetto.dev."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from twolane.cli.ops.output import seconds, share
from twolane.cli.rows import Rows
from twolane.v1 import admin_pb2

_STYLES = {
    "queued": "yellow",
    "resume wait": "yellow",
    "prefill wait": "yellow",
    "decode wait": "yellow",
    "prefill": "cyan",
    "transfer": "magenta",
    "decode": "green",
}
_LEAST_BAR = 10  # columns
_MOST_BAR = 80
_GOES_ON = ">"
_SHORT_S = 0.0005  # what is shorter has no bar


class Bars:
    """One line per span, on a common time scale."""

    def __init__(self, trace: admin_pb2.RequestTrace) -> None:
        long = (span for span in trace.spans if span.open or span.end_s - span.start_s >= _SHORT_S)
        self._spans = list(long)
        self._end_s = max((span.end_s for span in self._spans), default=0.0)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._spans:
            return
        names = [_name(span) for span in self._spans]
        tails = [seconds(span.end_s - span.start_s) for span in self._spans]
        places = [span.where for span in self._spans]
        widths = [max(map(len, column)) for column in (names, tails, places)]
        width = min(_MOST_BAR, options.max_width - sum(widths) - 8)
        if width < _LEAST_BAR:  # print the place on a separate line
            width = max(_LEAST_BAR, options.max_width - sum(widths[:2]) - 6)
            places = [""] * len(places)
        block = "█" if options.encoding.startswith("utf") else "#"
        for span, name, tail, place in zip(self._spans, names, tails, places, strict=True):
            begin, n = self._columns(span, width)
            end = _GOES_ON if span.open else ""
            bar = (" " * begin + block * (n - len(end)) + end).ljust(width)
            yield Text.assemble(
                f"{name:<{widths[0]}} |",
                (bar, _STYLES.get(span.name, "")),
                f"| {tail:>{widths[1]}}",
                f"  {place}" if place else "",
            )
        scale = seconds(self._end_s)
        yield Text(f"{'':<{widths[0]}} 0{scale:>{width}}", style="dim")

    def _columns(self, span: admin_pb2.TraceSpan, width: int) -> tuple[int, int]:
        """The first column of its bar, and its length, which is at least one."""
        whole = self._end_s or 1.0
        begin = min(width - 1, int(span.start_s / whole * width))
        end = max(begin + 1, round(span.end_s / whole * width))
        return begin, min(end, width) - begin


def so_what(trace: admin_pb2.RequestTrace) -> str:
    """A sentence about how the time was spent."""
    total = max((span.end_s for span in trace.spans), default=0.0)
    spent: dict[str, float] = {}
    for span in trace.spans:
        spent[span.name] = spent.get(span.name, 0.0) + span.end_s - span.start_s
    if not spent:
        return "nothing has happened to it yet"
    name, most = max(spent.items(), key=lambda entry: entry[1])
    spans = [span for span in trace.spans if span.name == name]
    where = max(spans, key=lambda span: span.end_s - span.start_s).where
    text = f"{name} took {share(most, total)} of {seconds(total)}"
    text += " so far" * any(span.open for span in trace.spans)
    if where:
        text += f", {'most' if len(spans) > 1 else 'all'} of it on {where}"
    retries = [mark for mark in trace.marks if mark.what == "retry"]
    if retries:
        reasons = dict.fromkeys(mark.note for mark in retries)
        text += f"; attempts were lost: {', '.join(reasons)}"
    if trace.error:
        text += f"; it ended with {trace.error}{f' ({trace.reason})' * bool(trace.reason)}"
    return text


def marks_table(trace: admin_pb2.RequestTrace) -> Rows:
    table = Rows(("at", "what", "where", "why"), ("attempt",))
    for mark in trace.marks:
        attempt = str(mark.attempt) if mark.attempt else ""
        table.add_row(seconds(mark.at_s), mark.what, mark.where, mark.note, attempt)
    return table


def perfetto(trace: admin_pb2.RequestTrace) -> str:
    """JSON in the trace-event format: a process for each place, times in microseconds since
    1970."""
    return json.dumps({"traceEvents": list(_events(trace)), "displayTimeUnit": "ms"})


def _events(trace: admin_pb2.RequestTrace) -> Iterator[dict[str, Any]]:
    request = trace.request
    began_us = request.arrived_at * 1e6
    pids: dict[str, int] = {}

    def pid(where: str) -> int:
        return pids.setdefault(where or request.router_id or "router", len(pids) + 1)

    for span in trace.spans:
        yield {
            "name": span.name,
            "cat": request.submission_id,
            "ph": "X",
            "ts": round(began_us + span.start_s * 1e6),
            "dur": max(1, round((span.end_s - span.start_s) * 1e6)),
            "pid": pid(span.where),
            "tid": max(1, span.attempt),
            "args": {"attempt": span.attempt, "open": span.open},
        }
    for mark in trace.marks:
        yield {
            "name": mark.what,
            "cat": request.submission_id,
            "ph": "i",
            "s": "p",
            "ts": round(began_us + mark.at_s * 1e6),
            "pid": pid(mark.where),
            "tid": max(1, mark.attempt),
            "args": {"why": mark.note},
        }
    for where, number in pids.items():
        yield {"name": "process_name", "ph": "M", "pid": number, "args": {"name": where}}


def _name(span: admin_pb2.TraceSpan) -> str:
    return f"{span.name} #{span.attempt}" if span.attempt > 1 else span.name
