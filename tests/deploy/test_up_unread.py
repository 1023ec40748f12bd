"""`twolane up` when whoever read its output has gone, as in `twolane up | head`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import psutil
import pytest

from tests.processes import is_alive

UP = [sys.executable, "-m", "twolane.cli", "up", "--launcher", "process", "--engine", "fake"]
UP += ["--port", "0", "--colocated", "1"]


def test_ctrl_c_while_it_starts_stops_it_even_when_nobody_reads_any_more() -> None:
    process = subprocess.Popen([*UP, "--json"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["kind"] == "starting"
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0


@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize("moment", ["starting", "ready"])
def test_cluster_whose_output_nobody_reads_any_more_stops_and_says_why(
    form: list[str], moment: str
) -> None:
    process = subprocess.Popen(
        [*UP, *form], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        while moment not in process.stdout.readline():
            pass
        children = psutil.Process(process.pid).children(recursive=True)
        process.stdout.close()
        if moment == "ready":
            next(c for c in children if "worker" in c.cmdline()).kill()  # that is news
        assert process.stderr.readline() == "nobody reads the output any more: stopping\n"
        assert "Traceback" not in process.stderr.read()
        assert process.wait(60) == 0
    assert not any(map(is_alive, children))


def test_cluster_that_can_tell_nobody_stops_all_the_same() -> None:
    process = subprocess.Popen(UP, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    assert b"Ctrl-C stops it" in process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 0
