"""Commands that look again and again, while the router that they ask ends and another serves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from tests.twolane.conftest import Door
from twolane.cli.app import app
from twolane.cli.patience import Patient
from twolane.client import Client
from twolane.errors import InvalidRequestError, UnavailableError
from twolane.v1 import acts_pb2, admin_pb2, admin_pb2_grpc, cluster_pb2

SILENT, AGAIN = "the router has not answered since ", "the router answers again"
FIRST, SECOND = "router-0", "router-1"
PAUSE_S = 0.2


def event(n: int, source: str = FIRST) -> cluster_pb2.ClusterEvent:
    """Each source has an id of its own for what it notes."""
    name = f"{'e' if source == FIRST else 'f'}{n}"
    return cluster_pb2.ClusterEvent(
        id=name, at=n, source=source, kind="worker.alive", subject=f"w{n}"
    )


class Router(admin_pb2_grpc.AdminServiceServicer):
    """`lives`: how many questions it answers. Then the first one ends, and calls `ended`; another
    one refuses, which ends the command."""

    def __init__(self, path: Path, name: str, lives: int, events: list[int]) -> None:
        self._name, self._lives, self._events = name, lives, events
        self.server = grpc.server(ThreadPoolExecutor(4))
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self, self.server)
        self.server.add_insecure_port(f"unix:{path}")
        self.server.start()
        self.ended: Callable[[], object] = lambda: None

    def GetClusterStatus(self, request: Any, context: Any) -> cluster_pb2.GetClusterStatusResponse:
        self._live(context)
        return cluster_pb2.GetClusterStatusResponse(router_id=self._name)

    def ReadLog(self, request: acts_pb2.ReadLogRequest, context: Any) -> acts_pb2.ReadLogResponse:
        self._live(context)
        last = request.after_line + 1
        lines = [f"line {last} from {self._name}"]
        return acts_pb2.ReadLogResponse(lines=lines, last_line=last, source="decode-0 01")

    def WatchEvents(
        self, request: admin_pb2.WatchEventsRequest, context: Any
    ) -> Iterator[admin_pb2.WatchEventsResponse]:
        assert request.past.page_size == (100 if self._name == FIRST else 1_000)
        yield admin_pb2.WatchEventsResponse(events=map(event, self._events))
        if self._name == SECOND:  # which has noted the last one itself, and tells one again
            again = [event(5), event(6, SECOND), event(7)]
            yield admin_pb2.WatchEventsResponse(events=again)
        self._lives = 0
        self._live(context)

    def _live(self, context: Any) -> None:
        self._lives -= 1
        if self._lives >= 0:
            return
        if self._name == SECOND:
            context.abort(grpc.StatusCode.INTERNAL, "the end")
        self.server.stop(0)
        self.ended()
        context.abort(grpc.StatusCode.UNAVAILABLE, "it ends")


@pytest.fixture
def routers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Router]]:
    """The first router, of the only cluster here. Others that are added end with it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("TWOLANE_ENDPOINT", raising=False)
    monkeypatch.setattr("twolane.cli.patience._EVERY_S", PAUSE_S / 4)
    for interval in ("ops.logs._FOLLOW_S", "ops.top._EVERY_S", "status.WATCH_EVERY_S"):
        monkeypatch.setattr(f"twolane.cli.{interval}", 0.0)
    (tmp_path / "twolane-1-a").mkdir()
    found = [Router(tmp_path / "twolane-1-a" / "admin.sock", FIRST, 1, [5, 6])]
    yield found
    for router in found:
        router.server.stop(0).wait()


@pytest.fixture
def _next_router(routers: list[Router], tmp_path: Path) -> Iterator[None]:
    """One that serves a while after the first has ended, at a socket of its own."""

    def start() -> None:
        path = tmp_path / "twolane-1-a" / "admin.sock.1"
        routers.append(Router(path, SECOND, 2, [4, 5, 6]))

    timer = threading.Timer(PAUSE_S, start)
    routers[0].ended = timer.start
    yield
    timer.join()


@pytest.fixture
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in ("patience", "ops.top"):
        monkeypatch.setattr(f"twolane.cli.{user}.console", lambda: Console(force_terminal=True))


def run(line: str) -> Result:
    return CliRunner().invoke(app, line.split())


@pytest.mark.usefixtures("_next_router")
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("status --watch --json", [FIRST, SECOND, SECOND]),
        ("logs decode-0 --follow", [FIRST, SECOND, SECOND]),
        ("events --follow --quiet", ["e5", "e6", "e7"]),
        ("events --follow --json", ['"e5"', '"e7"']),
    ],
)
def test_what_is_followed_goes_on_at_the_next_router(line: str, told: list[str]) -> None:
    done = run(line)
    assert len(done.stdout.splitlines()) == len(told), done.output
    for found, expected in zip(done.stdout.splitlines(), told, strict=True):
        assert expected in found
    silent, again, end = done.stderr.splitlines()
    assert silent.startswith(SILENT)
    assert (again, end) == (AGAIN, "Error: the end")


@pytest.mark.usefixtures("_next_router", "_terminal")
@pytest.mark.parametrize(("line", "shown"), [("status --watch", SECOND), ("top", "nothing is ser")])
def test_a_screen_says_above_what_was_seen_that_no_router_answers(line: str, shown: str) -> None:
    done = run(line)
    assert "Error: the end" in done.stderr, done.output
    before, silence, after = done.stdout.partition(SILENT)
    assert (bool(before), bool(silence), shown in after) == (True, True, True)


@pytest.mark.usefixtures("routers")
@pytest.mark.parametrize(
    "line", ["status --watch --json", "logs decode-0 --follow", "events --follow"]
)
def test_what_is_silent_for_long_ends_the_command_as_ever(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twolane.cli.patience._AT_MOST_S", PAUSE_S)
    done = run(line)
    assert done.exit_code == 3
    silent, end = done.stderr.splitlines()
    assert silent.startswith(SILENT)
    assert end.startswith("Error: ")


@pytest.mark.parametrize("line", ["status --watch", "logs x --follow", "events --follow", "top"])
def test_what_has_never_answered_is_not_waited_for(line: str, tmp_path: Path) -> None:
    done = run(f"{line} --endpoint unix:{tmp_path}/none.sock")
    assert done.exit_code == 3
    (told,) = done.stderr.splitlines()
    assert told.startswith("Error: no cluster answers")


def test_a_router_that_has_just_started_may_know_nothing_yet(
    door: Door, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("twolane.cli.patience._EVERY_S", 0.0)
    answers: list[Any] = ["a", UnavailableError("ends"), InvalidRequestError("unknown"), "b"]

    def ask(client: Client) -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return f"{answer} {client.models()[0].name}"[0]

    with Patient(Client(door.endpoint), lambda: Client(door.endpoint)) as patient:
        assert patient.look(ask) + patient.look(ask) == "ab"
        answers += [UnavailableError("ends"), InvalidRequestError("unknown")]
        monkeypatch.setattr("twolane.cli.patience._AT_MOST_S", 0.0)
        with pytest.raises(UnavailableError, match="ends"):
            patient.look(ask)
        answers[:] = [InvalidRequestError("wrong")]
        with pytest.raises(InvalidRequestError, match="wrong"):
            patient.look(ask)
    silent, again, silent_too = capsys.readouterr().err.splitlines()
    assert silent.startswith(SILENT)
    assert again == AGAIN
    assert silent_too.startswith(SILENT)


def test_the_first_call_without_an_answer_counts_towards_the_silence(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, lasts_s = [0.0], [0.0, 20.0, 6.0, 6.0, 6.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now_s[0], sleep=sleep, strftime=time.strftime)
    monkeypatch.setattr("twolane.cli.patience.time", clock)

    def ask(_: Client) -> None:
        now_s[0] += lasts_s.pop(0)
        if now_s[0]:
            raise UnavailableError("ends")

    with Patient(Client(door.endpoint), lambda: Client(door.endpoint)) as patient:
        patient.look(ask)
        with pytest.raises(UnavailableError, match="ends"):
            patient.look(ask)
    assert now_s == [20.0 + 1 + 6 + 1 + 6]
