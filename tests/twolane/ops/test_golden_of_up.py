"""What `twolane up` prints while a cluster starts, loses a worker and stops: as lines of JSON, and
as they are shown to a terminal and into a pipe. Names of what differs from run to run stand in
capitals."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.deploy.clusters import cluster_with, model_with
from tests.twolane.ops.test_golden_output import ENVIRONMENTS, check
from twolane.deploy.bundled import model_path
from twolane.deploy.cli.progress import Progress
from twolane.deploy.launch.events import read_event
from twolane.testing import start_local

STEADY = {
    "endpoint": (r":\d+$", ":PORT"),
    "http": (r":\d+$", ":PORT"),
    "metrics": (r":\d+$", ":PORT"),
    "admin": (r":.*/", ":FOLDER/"),
}


@cache
def events() -> list[dict[str, Any]]:
    """Of a cluster that starts, whose decode worker is killed, and that stops; how fast it loads is
    left out."""
    with start_local(engine="fake", http_port=0) as cluster:
        cluster.kill("decode-0")
        n_ready = [event["kind"] for event in cluster.events].index("ready")
        cluster.wait_for("started", "decode-0", after=n_ready)
    told = [steady(event) for event in cluster.events if event["kind"] != "loading"]
    workers_start = [
        sorted(group, key=lambda event: str(event.get("name")))  # they start at once
        for _, group in itertools.groupby(told, lambda event: event["kind"])
    ]
    return [event for group in workers_start for event in group]


def steady(event: Mapping[str, Any]) -> dict[str, Any]:
    """The same in each run."""
    found = {**event, **{name: name.upper() for name in ("pid", "epoch") if name in event}}
    for name in STEADY.keys() & found.keys():
        found[name] = re.sub(*STEADY[name], found[name])
    return found


def shown(kind: str) -> str:
    """The same events, each half a second after the one before."""
    out, clock = io.StringIO(), itertools.count(0.0, 0.5)
    is_terminal = kind == "terminal"
    console = Console(
        file=out, highlight=False, width=100, force_terminal=is_terminal,
        color_system="standard" if is_terminal else None,
    )  # fmt: skip
    cluster = cluster_with(model_with(model_dir=model_path(), name="bundled"), prefill=1, decode=1)
    progress = Progress(console, cluster, Path("/logs"), lambda: next(clock))
    for event in events():
        numbers = {name: 1 for name in ("pid", "epoch") if name in event}
        told = read_event(json.dumps({**event, **numbers}))
        assert told is not None
        progress(told)
    return out.getvalue()


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_events_are_as_they_were_looked_at(kind: str) -> None:
    if kind == "json":
        check("up_events", kind, "".join(f"{json.dumps(event)}\n" for event in events()))
        return
    told = shown(kind)
    if kind == "pipe":
        assert "\x1b" not in told
        assert all(line == line.rstrip() for line in told.splitlines())
    check("up_events", kind, told)


def test_a_line_has_no_more_fields_than_are_told_of() -> None:
    """`LocalCluster.events` and its readers know these."""
    fields = {name for event in events() for name in event}
    assert fields <= {"kind", "name", "epoch", "pid", "text", *STEADY}
