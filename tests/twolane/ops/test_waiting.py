"""No command of operators is silent while it waits."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.twolane.conftest import Door
from tests.twolane.ops.test_golden_output import COMMANDS, EXITS
from twolane.admin import AdminClient
from twolane.cli.app import app
from twolane.cli.waiting import News
from twolane.v1 import cluster_pb2

BY_CALLS = sorted({*COMMANDS} - {"events_follow"})  # that one shows what comes, when it comes
READS = {"rollout_start", "rollout_start_dry"}  # hosts read the model's files meanwhile


@pytest.fixture
def _slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that answers when its caller has said that it waits."""
    said = threading.Event()
    call, watch, tell = AdminClient._call, AdminClient.watch, News.tell
    drain = AdminClient.watch_drain

    def wait() -> None:
        if threading.current_thread().name != "telling":  # it looks what there is to tell
            assert said.wait(10), "the command is silent"

    def slow_call(self: AdminClient, *what: Any) -> Any:
        wait()
        return call(self, *what)

    def slow_watch(self: AdminClient, *what: Any) -> Iterator[Any]:
        wait()
        yield from watch(self, *what)

    def slow_drain(self: AdminClient, *what: Any, **more: Any) -> Iterator[Any]:
        for news in drain(self, *what, **more):
            for _ in ("said", "said again"):
                said.clear()
                wait()
            yield news

    def told(self: News, *what: str) -> None:
        tell(self, *what)
        said.set()

    monkeypatch.setattr("twolane.cli.waiting._LOOK_S", 0.001)
    monkeypatch.setattr(AdminClient, "_call", slow_call)
    monkeypatch.setattr(AdminClient, "watch", slow_watch)
    monkeypatch.setattr(AdminClient, "watch_drain", slow_drain)
    monkeypatch.setattr(News, "tell", told)


def run(door: Door, line: str) -> Result:
    return CliRunner().invoke(app, [*line.split(), "--endpoint", door.admin])


@pytest.mark.usefixtures("_slow")
@pytest.mark.parametrize("name", [*BY_CALLS, "bundle"])
def test_a_command_says_that_it_waits(name: str, door: Door, tmp_path: Any) -> None:
    done = run(door, COMMANDS.get(name, f"bundle {tmp_path}/bundle.tar.gz"))
    assert done.exit_code == EXITS.get(name, 0), done.output
    assert done.stderr.startswith("waiting: "), done.output
    assert ("waiting: hosts read /models/b" in done.stderr) is (name in READS)
    assert done.stderr.splitlines()[0] not in done.stdout


@pytest.mark.usefixtures("_slow")
@pytest.mark.parametrize("also", ["", " --json"])
def test_a_watched_drain_that_stands_still_is_told_again(
    also: str, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twolane.cli.waiting._AGAIN_S", 0.0)
    done = run(door, f"drain decode-0 --wait{also}")
    assert done.exit_code == 0, done.output
    told = done.stderr if also else done.stdout
    assert re.search(r"decode-0: has been told to drain \(\d+ s\)", told), done.output


def test_what_stays_is_said_again_with_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("twolane.cli.waiting.time", clock)
    news = News()
    for at_s, text in ((0, "a"), (10, "a"), (20, "b"), (49, "b"), (50, "b"), (60, "b"), (81, "b")):
        now[0] = 100.0 + at_s
        news.tell(text)
    assert capsys.readouterr().err.splitlines() == ["a", "b", "b (50 s)", "b (81 s)"]


def test_a_figure_that_changes_is_no_news(capsys: pytest.CaptureFixture[str]) -> None:
    news = News(err=False)
    for text, figure in (("1 request", " (9 s)"), ("1 request", " (8 s)"), ("none", "")):
        news.tell(text, figure)
    assert capsys.readouterr().out.splitlines() == ["1 request (9 s)", "none"]


def host(*workers: str) -> cluster_pb2.HostStatus:
    return cluster_pb2.HostStatus(name="node-c", state="up", cordoned=True, workers=workers)


def pools(alive: int) -> list[cluster_pb2.PoolStatus]:
    return [cluster_pb2.PoolStatus(pool="decode", workers=3, alive=alive)]


def rollout(state: str) -> cluster_pb2.RolloutStatus:
    return cluster_pb2.RolloutStatus(state=state, to_dir="/b")


@pytest.mark.parametrize(
    ("line", "look", "found", "told"),
    [
        (
            "drain-node node-c",
            "ops.hosts._status",
            (host("decode-1"), host()),
            "node-c: still there: decode-1",
        ),
        (
            "scale decode=3 --wait",
            "ops.scale._pools",
            (pools(2), pools(3)),
            "waiting: decode: 2 of 3 alive",
        ),
        (
            "rollout start /b --wait --json",
            "rollout._latest",
            (rollout("running"), rollout("done")),
            "running: 0 of 0 workers new, /b",
        ),
    ],
)
def test_a_long_wait_is_not_a_silent_one(
    line: str, look: str, found: Any, told: str, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --json, too."""
    looks = iter([found[0], found[0], found[1]])
    monkeypatch.setattr("twolane.cli.waiting._AGAIN_S", 0.0)
    monkeypatch.setattr(f"twolane.cli.{look}", lambda *_: next(looks))
    monkeypatch.setattr(f"twolane.cli.{look.rpartition('.')[0]}._POLL_S", 0.0)
    done = run(door, f"{line} --yes")
    assert done.exit_code == 0, done.output
    first, second = (its for its in done.stderr.splitlines() if its.startswith(told))
    assert first == told
    assert re.fullmatch(r" \(\d+ s\)", second.removeprefix(told))


@pytest.mark.parametrize(
    ("also", "said"),
    [
        ([], "no token has come yet"),
        (["--no-stream"], "the answer is not complete yet"),
        (["--json"], "the answer is not complete yet"),
    ],
)
def test_a_prompt_without_an_answer_is_no_silence(
    also: list[str], said: str, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twolane.cli.waiting._LOOK_S", 0.001)
    line = ["generate", "silent", "--timeout-s", "0.5", *also, "--endpoint", door.endpoint]
    done = CliRunner().invoke(app, line)
    assert done.stderr.splitlines()[0] == f"waiting: {said}"
    assert (done.exit_code, done.stdout) == (4, "")


def test_an_answer_that_has_begun_is_waited_for_in_silence(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twolane.cli.waiting._LOOK_S", 0.2)
    line = ["generate", "forever", "--timeout-s", "1", "--endpoint", door.endpoint]
    assert "waiting: " not in CliRunner().invoke(app, line).stderr
