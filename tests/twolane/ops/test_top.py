"""The line of `twolane top` that says so what, and how wide it may be."""

from __future__ import annotations

import os
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.twolane.conftest import Door
from twolane.cli.app import app
from twolane.cli.common import console
from twolane.cli.ops.top import so_what
from twolane.v1 import cluster_pb2, worker_pb2

P, D = worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE


def status(queued: int = 0, **loads: Any) -> cluster_pb2.GetClusterStatusResponse:
    found = cluster_pb2.GetClusterStatusResponse(requests_by_state={"queued": queued})
    for name, load in loads.items():
        role = P if name.startswith("p") else D
        state = name if name == "draining" else "alive"
        found.workers.add(
            worker=worker_pb2.WorkerAddress(worker_id=name), roles=[role], state=state, load=load
        )
    return found


def load(used: int = 10, **fields: Any) -> worker_pb2.LoadReport:
    return worker_pb2.LoadReport(pages=worker_pb2.PageCounts(used=used, free=100 - used), **fields)


WAITS = load(prefill_queue_tokens=1600, prefill_tokens_per_s=2000)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (status(p0=load(), d0=load(41)), "there is room: decode is 41 % full"),
        (status(p0=WAITS, d0=load(41)), "prefill is the bottleneck: prompts wait 800 ms, decode"),
        (status(3, p0=load(), d0=load(95)), "decode is the bottleneck: its pages are 95 % held"),
        (status(1, d0=load()), "nothing is served: there is no prefill worker; 1 request waits"),
        (status(3, p0=load(), d0=load(46)), "requests wait for a place: decode is 46 % full, prom"),
        (status(1, p0=load(), d0=load(95), draining=load(0)), "its pages are 95 % held; 1 request"),
        (status(0, p0=load(), draining=load(46)), "there is room: decode is 46 % full"),
        (
            status(
                p0=load(),
                d0=load(step_p50_s=0.02),
                d1=load(step_p50_s=0.02),
                d2=load(step_p50_s=0.2),
            ),
            "; slow: d2",
        ),
        (status(p0=load(step_age_s=9, step_bound_s=5), d0=load()), "; slow: p0"),
    ],
)
def test_the_bottleneck_and_the_slow_worker_are_named(
    seen: cluster_pb2.GetClusterStatusResponse, said: str
) -> None:
    assert said in so_what(seen)


@pytest.mark.parametrize("line", ["top --once", "status"])
def test_columns_below_one_are_as_if_none_were_said(line: str, door: Door) -> None:
    arguments = [*line.split(), "--endpoint", door.admin]
    none, zero = (
        CliRunner(env={"COLUMNS": columns}).invoke(app, arguments).stdout for columns in (None, "0")
    )
    assert len(none.splitlines()) > 1
    assert zero == none


def test_a_terminal_is_as_wide_as_it_is_where_columns_are_below_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setattr("os.get_terminal_size", lambda _: os.terminal_size((123, 40)))
    assert console().width == 123
