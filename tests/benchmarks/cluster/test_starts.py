"""Starts are counted, those that fail too, each cold one with a cache of its own."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster import starts
from benchmarks.cluster.starts import ask, measure_starts
from benchmarks.load.contender import Contender

SERVE = (
    "import os, pathlib, sys; cache = pathlib.Path(os.environ['TRITON_CACHE_DIR']);"
    "is_warm = cache.exists(); cache.mkdir(exist_ok=True);"
    "print('ready' if {condition} else 'wrong', flush=True);"
    "sys.stdin.read() if {condition} else sys.exit(3)"
)


def contender(condition: str) -> Contender:
    command = f'{sys.executable} -c "{SERVE.format(condition=condition)}"'
    return Contender(name="one", endpoints=("there",), commands=(command,), ready="ready")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", os.environ.get("TRITON_CACHE_DIR", ""))


def test_a_cold_start_has_an_empty_cache_and_a_warm_one_what_the_last_left(tmp_path: Path) -> None:
    until_s = time.monotonic() + 60
    found = measure_starts(
        contender("is_warm"), cold=2, warm=1, logs=tmp_path, until_s=until_s, ask=lambda where: ""
    )
    assert (found["cold_starts"], found["cold_failed"]) == (2, 2)
    assert (found["warm_starts"], found["warm_failed"]) == (1, 0)
    assert "ended with 3" in found["cold"][0]["failure"]
    assert found["cold_ready_s"] is None
    assert found["warm_ready_s"] == found["warm"][0]["ready_s"] > 0


def test_a_cluster_that_does_not_answer_has_failed(tmp_path: Path) -> None:
    until_s = time.monotonic() + 60
    found = measure_starts(
        contender("True"), cold=1, warm=0, logs=tmp_path, until_s=until_s, ask=lambda where: "LOST"
    )
    assert found["cold"][0]["failure"] == "LOST"
    assert found["cold_failed"] == 1


def test_no_start_begins_after_the_time_limit(tmp_path: Path) -> None:
    found = measure_starts(
        contender("True"), cold=3, warm=3, logs=tmp_path, until_s=time.monotonic() - 1
    )
    assert (found["cold_starts"], found["warm_starts"]) == (0, 0)


@pytest.mark.parametrize("scheme", ["", "sdk://"])
def test_a_cluster_is_asked_in_its_endpoints_protocol(
    open_door: Callable[..., Any], scheme: str
) -> None:
    door = open_door(multiplexes=True)
    assert ask(f"{scheme}{door.endpoint}") == ""
    assert door.streams == (1 if scheme else 0)
    assert len(door.requests) == 1


def test_an_answer_that_ends_early_or_never_begins_is_a_failure(
    open_door: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(open_door(drop_last_token=True).endpoint) == "WRONG_LENGTH"
    monkeypatch.setattr(starts, "TIMEOUT_S", 0.5)
    assert "started at 127.0.0.1:1" in ask("127.0.0.1:1")
