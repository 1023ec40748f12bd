"""`twolane up` in bad surroundings: it serves, or ends with one line that names the cause. Nothing
stays behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.processes import is_alive

UP = [sys.executable, "-m", "twolane.cli", "up", "--json", "--launcher", "process", "--port", "0"]
FAKE = ("--engine", "fake", "--colocated", "1")
PAIR = ("--prefill", "1", "--decode", "1")  # of the bundled model
IS_ROOT = os.getuid() == 0
CLOCK = Path(__file__).with_name("wall_clock.c")
SECRET_FILE = "TWOLANE_SECRET_FILE"
YEAR_S = 365 * 86_400
Prefix = Callable[[Path], list[str]]


@dataclass(frozen=True)
class Surroundings:
    """`prefix` is put before the command, and is told the test's folder. TMPDIR is `tmpdir` in that
    folder. `cause`: what the one line says of a start that fails; empty: the cluster serves."""

    prefix: Prefix = lambda _: []
    options: tuple[str, ...] = FAKE
    tmpdir: str = "tmp"
    cause: str = ""
    mounts: bool = False
    other_user: bool = False
    clock: bool = False


def in_shell(script: str, *, mounts: bool = False) -> list[str]:
    """A command before which a shell runs `script`; with `mounts`, what that mounts is seen by the
    command alone."""
    apart = ["unshare", "--mount"] if IS_ROOT else ["unshare", "--mount", "--map-root-user"]
    return [*(apart if mounts else []), "sh", "-c", f'{script} && exec "$@"', "sh"]


def mounted(script: str, **others: Any) -> Surroundings:
    return Surroundings(lambda _: in_shell(script, mounts=True), mounts=True, **others)


def nobody(options: tuple[str, ...]) -> Surroundings:
    """A user without a home who may write nothing. It may read everything, as the interpreter can
    be in root's home."""
    read = "+dac_read_search"
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    user += [f"--inh-caps={read}", f"--ambient-caps={read}", "env", "HOME=/nonexistent"]
    return Surroundings(lambda _: user, options, other_user=True)


def at_clock(offset_s: Callable[[], int]) -> Surroundings:
    return Surroundings(lambda folder: wall_clock(folder, offset_s()), clock=True)


def wall_clock(folder: Path, offset_s: int) -> list[str]:
    """Run a command whose wall clock is off by what the file `clock` says, now and later."""
    library = folder / "wall_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, CLOCK, "-ldl"], check=True)
    set_clock(folder, offset_s)
    return ["env", f"LD_PRELOAD={library}", f"WALL_CLOCK_FILE={folder / 'clock'}"]


def set_clock(folder: Path, offset_s: int) -> None:
    new = folder / "clock.new"
    new.write_text(f"{offset_s}\n")
    new.rename(folder / "clock")


FULL = 'mount -t tmpfs -o size=64k none "$TMPDIR" && ! cat /dev/zero 2>&- > "$TMPDIR/x"'
SMALL = 'mount -t tmpfs -o size=16k none "$TMPDIR"'
READ_ONLY = 'mount -t tmpfs -o ro none "$TMPDIR"'
NOWHERE = (
    "for each in /tmp /var/tmp /usr/tmp; do "
    '[ ! -d "$each" ] || mount -t tmpfs -o ro none "$each" || exit 9; done && '
    "mount --bind /var/tmp /mnt && cd /mnt"
)
NO_SHM = "mount -t tmpfs -o ro,size=4k none /dev/shm"

QUICK = {
    "1 GB of addresses": Surroundings(lambda _: in_shell("ulimit -v 1000000")),
    "TMPDIR is full": mounted(FULL),
    "nothing is writable": mounted(NOWHERE, cause="No usable temporary directory"),
}
OTHERS = {
    "TMPDIR is missing": Surroundings(tmpdir="missing"),
    "TMPDIR is read-only": mounted(READ_ONLY),
    "TMPDIR has 16 KB": mounted(SMALL),
    "no shared memory": mounted(NO_SHM, options=PAIR),
    "nobody": nobody(FAKE),
    "nobody, the model": nobody(PAIR),
    "ten years ahead": at_clock(lambda: 10 * YEAR_S),
    "in 1970": at_clock(lambda: 86_400 - int(time.time())),
}
CASES = QUICK | OTHERS


def skip_where_it_cannot_be(case: Surroundings) -> None:
    asked = in_shell("mount -t tmpfs none /mnt", mounts=True)
    if case.mounts and subprocess.run([*asked, "true"], capture_output=True).returncode:
        pytest.skip("needs a mount namespace")
    if case.other_user and not (IS_ROOT and shutil.which("setpriv")):
        pytest.skip("needs root, and setpriv")


needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture
def folder() -> Iterator[Path]:
    """One with a short path, unlike `tmp_path`: the paths of sockets in it are bounded."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="up-") as name:
        yield Path(name)


@pytest.fixture
def environment(folder: Path) -> dict[str, str]:
    """TMPDIR is a folder that everybody may write to. The secret of the tests is not given: only
    their own user may read it."""
    tmpdir = folder / "tmp"
    tmpdir.mkdir()
    tmpdir.chmod(0o1777)
    ours = {name: value for name, value in os.environ.items() if name != SECRET_FILE}
    return {**ours, "TMPDIR": str(tmpdir)}


@contextmanager
def started(
    command: list[str], environment: dict[str, str]
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The process, and its event `ready` or `failed`."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    event: dict[str, Any] = {}
    try:
        for line in process.stdout:
            event = json.loads(line)
            if event["kind"] in ("ready", "failed"):
                break
        yield process, event
    finally:
        process.kill()
        process.communicate()


def n_answered(ready: dict[str, Any]) -> int:
    """Tokens of one answer over HTTP."""
    asked = urllib.request.Request(
        f"http://{ready['http']}/v1/completions",
        json.dumps({"prompt": "Once", "max_tokens": 8, "ignore_eos": True}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=60.0) as answer:
        n_tokens: int = json.load(answer)["usage"]["completion_tokens"]
    return n_tokens


def stop(process: subprocess.Popen[str]) -> None:
    """All of its processes are gone then, and it has complained about nothing."""
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert not any(map(is_alive, children))


def marked(mark: str) -> list[int]:
    """Processes that were started with this in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SURROUNDINGS") == mark and is_alive(process):
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def cases() -> Iterator[Any]:
    yield from QUICK
    for name, case in OTHERS.items():
        marks = [pytest.mark.soak, *([needs_cc] if case.clock else [])]
        yield pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", list(cases()))
def test_up_serves_or_says_in_one_line_why_not(
    name: str, folder: Path, environment: dict[str, str]
) -> None:
    case, mark = CASES[name], str(folder)
    skip_where_it_cannot_be(case)
    environment |= {"TMPDIR": str(folder / case.tmpdir), "SURROUNDINGS": mark}
    with started([*case.prefix(folder), *UP, *case.options], environment) as (process, event):
        if case.cause:
            _, errors = process.communicate(timeout=60)
            said = (str(event.get("text", "")) + errors).strip()
            assert case.cause in said
            assert "\n" not in said
            assert process.returncode == 1
        else:
            assert event.get("kind") == "ready", (event, process.communicate())
            assert n_answered(event) == 8
            stop(process)
    assert not marked(mark)


@needs_cc
@pytest.mark.soak
def test_a_wall_clock_that_steps_stops_no_answers(
    folder: Path, environment: dict[str, str]
) -> None:
    """Two hours ahead, then one hour behind, while it serves."""
    command = [*wall_clock(folder, 0), *UP, *FAKE]
    with started(command, environment) as (process, ready):
        for offset_s in (0, 7200, -3600):
            set_clock(folder, offset_s)
            assert [n_answered(ready) for _ in range(20)] == [8] * 20
        stop(process)


def test_a_store_that_is_not_there_is_named_and_the_cluster_serves(
    environment: dict[str, str],
) -> None:
    with socket.socket() as taken:  # and not listened at
        taken.bind(("127.0.0.1", 0))
        store = f"redis://:secret@127.0.0.1:{taken.getsockname()[1]}/0"
        with started([*UP, *FAKE, "--store", store], environment) as (process, event):
            assert event["kind"] == "ready"
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
    named = store.replace(":secret@", "")
    assert errors.startswith(f"Warning: {named} is not reached ([Errno 111] Connection refused)")
    assert len(errors.splitlines()) == 1
