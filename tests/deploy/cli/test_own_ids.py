"""Names of processes that are started by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from twolane.deploy import __main__ as by_hand
from twolane.deploy.spec.specs import RouterSpec, WorkerSpec


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize(
    "command", [["router", "--admin-socket", "none"], ["worker", "--engine", "fake"]]
)
def test_processes_that_are_given_no_name_have_one_of_host_and_process(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[RouterSpec | WorkerSpec] = []
    monkeypatch.setattr(by_hand, "_run", lambda kind, spec, given: made.append(spec()))
    for pid in (7, 8):
        monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
        monkeypatch.setattr("socket.gethostname", lambda: "node-a")
        CliRunner().invoke(by_hand.main, command, catch_exceptions=False)
    ids = [spec.worker_id if isinstance(spec, WorkerSpec) else spec.router_id for spec in made]
    assert ids == [f"{command[0]}-node-a-7", f"{command[0]}-node-a-8"]
