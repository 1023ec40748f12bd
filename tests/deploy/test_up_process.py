"""`twolane up` as a user runs it: real processes, a terminal, signals."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.processes import is_alive
from twolane import Client

FAKE = ["--launcher", "process", "--engine", "fake", "--port", "0"]
ONE = [*FAKE, "--colocated", "1"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "twolane.cli", "up", *arguments]


def wait_until(holds: Callable[[], bool], within_s: float = 60.0) -> None:
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.fixture
def hangup_counts() -> Iterator[None]:
    """Whoever runs the tests may have been started by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@contextmanager
def up_with_events(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A cluster that is ready: its front process; the launcher, the router and the workers."""
    process = subprocess.Popen(command("--json", *arguments), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if json.loads(line)["kind"] == "ready":
                break
        (launcher,) = psutil.Process(process.pid).children()
        yield process, [launcher, *launcher.children(recursive=True)]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if is_alive(process)]


def test_ctrl_c_in_a_terminal_stops_everything_and_exits_0() -> None:
    terminal, theirs = pty.openpty()
    with subprocess.Popen(
        command(*ONE), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        shown = b""
        while b"twolane status" not in shown:
            shown += os.read(terminal, 65536)
        children = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does at Ctrl-C
        assert process.wait(60) == 0
        while b"stopped" not in shown:
            shown += os.read(terminal, 65536)
    os.close(terminal)
    assert len(children) == 3
    assert not alive(children)
    for part in (b"starting", b"colocated-0", b"ready", b"twolane generate", b"twolane status"):
        assert part in shown


def test_the_front_killed_leaves_no_orphan() -> None:
    with up_with_events(*ONE) as (process, children):
        assert len(children) == 3
        process.kill()
        wait_until(lambda: not alive(children))


def test_the_launcher_killed_leaves_no_process_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with up_with_events(*ONE) as (process, children):
        assert list(tmp_path.iterdir())
        children[0].kill()
        assert process.wait(60) == 128 + signal.SIGKILL
        assert not alive(children)
    assert not list(tmp_path.iterdir())


def test_a_second_ctrl_c_does_not_wait_for_running_answers() -> None:
    with up_with_events(*ONE, "--stop-grace-s", "600") as (process, children):
        for child in children[1:]:
            child.suspend()
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["kind"] == "stopping"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert not alive(children)


@pytest.mark.usefixtures("hangup_counts")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_front_and_launcher_is_one_stop(number: signal.Signals) -> None:
    with up_with_events(*ONE, "--stop-grace-s", "600") as (process, children):
        for child in children[1:]:
            child.suspend()
        children[0].send_signal(number)
        process.send_signal(number)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["kind"] == "stopping"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)  # it is patient: its children cannot have ended
        for child in children[1:]:
            child.resume()
        assert process.wait(60) == 0


@pytest.mark.usefixtures("hangup_counts")
def test_the_third_stop_ends_even_a_launcher_that_hangs() -> None:
    with up_with_events(*ONE) as (process, children):
        children[0].suspend()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process.send_signal(number)  # equal ones that wait would be one
        assert process.wait(60) == 128 + signal.SIGKILL
        assert not alive(children)


def test_a_child_that_was_there_before_is_left_alone() -> None:
    program = f"sleep 60 >/dev/null & echo $!; exec {sys.executable} -P -m twolane.deploy.up --help"
    done = subprocess.run(
        ["sh", "-c", program], stdout=subprocess.PIPE, text=True, check=True, timeout=100
    )
    sleeper = psutil.Process(int(done.stdout.splitlines()[0]))
    assert alive([sleeper])
    sleeper.kill()


def test_ctrl_c_while_it_starts_stops_it_too() -> None:
    process = subprocess.Popen(command("--json", *ONE), stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["kind"] == "starting"
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)  # an impatient one changes nothing
        kinds = [json.loads(line)["kind"] for line in process.stdout]
        assert kinds[-1] == ("stopped" if "ready" in kinds else "stopping")
        assert process.wait(60) == 0


def test_ctrl_c_while_it_starts_says_when_it_has_stopped() -> None:
    with subprocess.Popen(command(*ONE), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "starting" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        words = [line.split()[-1] for line in process.stdout]
        assert words[-2:] == ["stopping", "stopped"]


@pytest.mark.parametrize(
    ("moment", "number", "send"),
    [
        ("gcs_server", signal.SIGTERM, os.killpg),
        # the moment of the next with the signal of the others
        pytest.param("raylet", signal.SIGTERM, os.killpg, marks=pytest.mark.soak),
        ("raylet", signal.SIGINT, os.kill),
        ("ready", signal.SIGTERM, os.killpg),
    ],
)
def test_a_signal_to_a_cluster_on_ray_ends_all_that_was_started(
    moment: str, number: signal.Signals, send: Callable[[int, int], None], tmp_path: Path
) -> None:
    def has_come() -> bool:
        names = {name_of(p) for p in started_in(folder)} if moment != "ready" else set()
        return moment in names or '"ready"' in output.read_text()

    output = tmp_path / "output"
    arguments = ["--json", "--engine", "fake", "--port", "0", "--colocated", "1"]
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="") as folder:  # Ray's sockets: 107 bytes
        environment = {**os.environ, "TMPDIR": folder}
        with (
            output.open("wb") as file,
            subprocess.Popen(
                command(*arguments), stdout=file, env=environment, start_new_session=True
            ) as process,
        ):
            try:
                wait_until(has_come, 200)  # Ray takes its time where others work, too
                send(process.pid, number)
                assert process.wait(60) == 0
            finally:
                process.kill()
        assert started_in(folder) == []
        assert os.listdir(folder) == []


def test_a_demo_that_is_terminated_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    arguments = [sys.executable, "-m", "twolane.deploy.demo", "--launcher", "process"]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, env=environment) as process:
        wait_until(lambda: bool(list(tmp_path.glob("*/router-0.log"))))
        process.terminate()
        assert process.wait(60) == 1
    assert started_in(str(tmp_path)) == []
    assert os.listdir(tmp_path) == []


def started_in(folder: str) -> list[psutil.Process]:
    """Every process with that temporary folder, whoever its parent is by now."""
    return [p for p in psutil.process_iter() if folder in environment_of(p).values()]


def name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def environment_of(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}  # it has ended, or is somebody else's


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_is_still_importing_ends_it_in_one_line(number: signal.Signals) -> None:
    program = (
        "import importlib.abc, os, sys, time, twolane.deploy.up\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == 'click': os.kill(os.getppid(), {int(number)}), time.sleep(90)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "twolane.deploy.up.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "stopped\n")


def test_folders_of_a_killed_start_are_removed_at_the_next(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command("--json", *ONE), stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (left,) = tmp_path.glob("twolane-*")
        assert left.name.startswith(f"twolane-{process.pid}-")
        process.kill()
    wait_until(lambda: not started_in(str(tmp_path)))  # they write nothing to it any more
    of_the_living, foreign = tmp_path / f"twolane-{os.getpid()}-abc", tmp_path / "twolane-mine"
    for folder in (of_the_living, foreign):
        folder.mkdir()
    subprocess.run(
        command(*ONE, "--host", "192.0.2.1"), capture_output=True, env=environment, check=False
    )
    assert sorted(tmp_path.glob("twolane-*")) == sorted([of_the_living, foreign])


def test_a_port_in_use_is_named() -> None:
    with up_with_events(*ONE) as (_, children):
        listening = {
            c.laddr.port
            for child in children
            for c in child.net_connections("tcp4")
            if c.status == psutil.CONN_LISTEN
        }
        done = subprocess.run(
            command(*ONE, "--port", str(min(listening))),
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{min(listening)}" in done.stderr


def test_a_worker_that_cannot_listen_says_so(tmp_path: Path) -> None:
    arguments = ["worker", "--engine", "fake", "--bind-host", "192.0.2.1", "--insecure"]
    done = subprocess.run(
        [sys.executable, "-m", "twolane.deploy", *arguments],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"worker-{socket.gethostname()}-" in done.stderr
    assert ": cannot listen on 192.0.2.1" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_shows_the_launchers_options() -> None:
    done = subprocess.run(command("--help"), capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: twolane up")
    for option in ("--prefill", "--launcher", "--exact", "--transport", "--lease-s"):
        assert option in done.stdout


def test_router_and_worker_start_as_plain_processes_too(tmp_path: Path) -> None:
    def start(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "twolane.deploy", *arguments],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "HOME": str(tmp_path)},
        )  # fmt: skip

    def endpoint(process: subprocess.Popen[str], what: str = "serves") -> str:
        assert process.stdout is not None
        name, _, where = process.stdout.readline().strip().partition(f" {what} at ")
        assert name == "w" or name.startswith(f"router-{socket.gethostname()}-")
        return where

    with start("router", "--port", "0", "--worker-port", "0") as router:
        door, worker_door = endpoint(router), endpoint(router, "hears workers")
        with start(
            "worker", "--worker-id", "w", "--router", worker_door, "--engine", "fake"
        ) as worker:
            endpoint(worker)
            with Client(door) as client:
                wait_until(lambda: bool(client.models()))
                assert len(client.generate("hello", max_tokens=5).tokens) == 5
            worker.terminate()
            assert worker.wait(60) == 0
        router.terminate()
        assert router.wait(60) == 0
