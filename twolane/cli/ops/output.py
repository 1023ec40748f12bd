"""The output of operators' commands: a summary line and a table, or the message as JSON with the
name of its schema."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import click
from google.protobuf import json_format
from google.protobuf.message import Message
from rich.console import Group, RenderableType
from rich.text import Text

from twolane.cli.common import emit
from twolane.v1 import cluster_pb2

STATE_STYLE = {
    "alive": "green",
    "running": "green",
    "up": "green",
    "suspect": "yellow",
    "draining": "yellow",
    "joining": "yellow",
    "queued": "yellow",
    "resuming": "yellow",
    "silent": "red",
    "gone": "red",
    "off": "red",
    "failed": "red",
}
ID_SHOWN = 8  # characters of a submission id: enough to name it

quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print only ids, one per line.")


def as_json(message: Message) -> dict[str, Any]:
    """All fields by their names in proto/, and the schema, such as
    `twolane.v1.ListRequestsResponse`."""
    fields: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {"schema": message.DESCRIPTOR.full_name, **_sorted(fields)}


def _sorted(value: Any) -> Any:
    """The same with its keys in order: those of a protobuf map have none."""
    if isinstance(value, dict):
        return {key: _sorted(part) for key, part in sorted(value.items())}
    return [_sorted(part) for part in value] if isinstance(value, list) else value


def print_message(message: Message, *, in_one_line: bool = False) -> None:
    click.echo(json.dumps(as_json(message), indent=None if in_one_line else 2))


def show(so_what: str, *parts: RenderableType, style: str = "bold") -> None:
    emit(report(so_what, *parts, style=style))


def report(so_what: str, *parts: RenderableType, style: str = "bold") -> Group:
    """The summary line, then the rest."""
    spaced = [each for part in parts for each in ("", part)]
    return Group(Text(so_what, style=style), *spaced)


def facts(pairs: Sequence[tuple[str, str]]) -> Text:
    """Text with one name and value per line."""
    width = max(len(name) for name, _ in pairs)
    lines = [Text.assemble((f"{name:<{width}}  ", "dim"), value) for name, value in pairs]
    return Text("\n").join(lines)


def missing(unreached: Iterable[cluster_pb2.RouterStatus]) -> list[RenderableType]:
    """One line for each router whose part is not shown."""
    return [
        Text(f"missing: {router.address.router_id} ({router.unreached})", style="yellow")
        for router in unreached
    ]


def state(name: str) -> Text:
    return Text(name, style=STATE_STYLE.get(name, ""))


def seconds(value: float) -> str:
    """Text such as `850 ms`, `4.2 s`, `12 min` or `3.5 h`."""
    if value < 0.0005:
        return "0"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def count(n: int, noun: str) -> str:
    """Text such as `1 worker` or `2 workers`."""
    return f"{n} {noun}{'s' * (n != 1)}"


def share(part: float, whole: float) -> str:
    """Text such as `81 %`."""
    return f"{math.floor(100 * part / whole + 0.5)} %" if whole else "0 %"


def rollout_in_words(its: cluster_pb2.RolloutStatus) -> str:
    """running: 2 of 4 workers new, /models/b; waiting: decode-1 drains, 3 requests left"""
    n = sum(worker.is_new for worker in its.workers)
    part = f", {its.canary_share:.0%} of new requests at most" if its.canary_share else ""
    text = f"{its.state}: {n} of {count(len(its.workers), 'worker')} new, {its.to_dir}{part}"
    if not its.waits_for:
        return text
    return f"{text}; waiting{' for ' if its.waits_for.startswith('an ') else ': '}{its.waits_for}"
