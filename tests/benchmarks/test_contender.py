import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from benchmarks.load import contender_process
from benchmarks.load.contender import (
    Contender,
    ContenderError,
    choose,
    parse_targets,
    read_contenders,
)
from benchmarks.load.contender_process import ContenderDiedError, start
from benchmarks.load.target import Told

SHIPPED = Path(__file__).parents[2] / "benchmarks" / "contenders"
# Says where its child is, and that it is ready; both would sleep for ever.
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, "port", sys.argv[1], flush=True)
print("serves", flush=True)
time.sleep(600)
"""


def _file(folder: Path, text: str) -> Path:
    path = folder / "some.toml"
    path.write_text(text)
    return path


def _contender(folder: Path, script: str, *arguments: str, ready: str = "serves") -> Contender:
    path = folder / "script.py"
    path.write_text(script)
    command = " ".join([sys.executable, str(path), *arguments])
    return Contender(
        name="one", commands=(command,), endpoints=("h:$port0",), ready=ready, start_timeout_s=60
    )


def _is_alive(pid: int) -> bool:
    """Not a zombie that waits for somebody to ask for its exit code, either."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def test_a_file_tells_contenders_in_its_order(tmp_path: Path) -> None:
    path = _file(
        tmp_path,
        '[b]\nendpoints = ["h:1", "h:2"]\nvocab_size = 9\n'
        '[a]\ncommands = ["serve --port $port0"]\nendpoints = ["http://h:$port0"]\nready = "up"\n',
    )
    b, a = read_contenders(path)
    assert b == Contender(name="b", endpoints=("h:1", "h:2"), told=Told(vocab_size=9))
    assert a.fill_in({"port0": "77"}).commands == ("serve --port 77",)
    assert a.fill_in({"port0": "77"}).endpoints == ("http://h:77",)
    with pytest.raises(ContenderError, match="no value for 'port0'"):
        a.fill_in({})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[a", "some.toml"),
        ("a = 1", "not a table"),
        ('[a]\ncommands = ["x"]', "no endpoints"),
        ('[a]\nendpoints = ["h:1"]\ncolour = "red"', "colour"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_place(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(ContenderError, match=complaint):
        read_contenders(_file(tmp_path, text))


def test_names_of_a_file_are_given_on_the_command_line(tmp_path: Path) -> None:
    path = _file(tmp_path, '[a]\ncommands = ["serve $model"]\nendpoints = ["h:1"]')
    (one,) = choose([path], [], [], ["model=some/dir"])
    assert one.fill_in({}).commands == ("serve some/dir",)


def test_targets_may_have_several_endpoints() -> None:
    (one,) = parse_targets(["x=http://h:1,http://h:2"])
    assert (one.name, one.endpoints) == ("x", ("http://h:1", "http://h:2"))


def test_contenders_are_chosen_by_name(tmp_path: Path) -> None:
    path = _file(tmp_path, '[a]\nendpoints = ["h:1"]\n[b]\nendpoints = ["h:2"]')
    assert [one.name for one in choose([path], ["b"], ["c=h:3"])] == ["b", "c"]
    with pytest.raises(click.BadParameter, match="not in the files"):
        choose([path], ["z"], [])
    with pytest.raises(click.UsageError, match="nothing to measure"):
        choose([], [], [])
    with pytest.raises(click.UsageError, match="same name"):
        choose([path], [], ["a=h:3"])


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_files_can_be_read_and_filled_in(path: Path) -> None:
    values = {"python": "python", "model": "m", **{f"port{i}": str(7_000 + i) for i in range(10)}}
    for one in read_contenders(path):
        filled = one.fill_in(values)
        assert "$" not in "".join([*filled.commands, *filled.endpoints])


def test_what_was_started_ends_with_all_that_it_started(tmp_path: Path) -> None:
    with start(_contender(tmp_path, PARENT, "$port0"), tmp_path) as started:
        words = (tmp_path / "one_0.log").read_text().split()
        child, port = int(words[1]), words[3]
        assert started.contender.endpoints == (f"h:{port}",)
        started.check()
        assert _is_alive(child)
    end_s = time.monotonic() + 60
    while _is_alive(child) and time.monotonic() < end_s:
        time.sleep(0.02)
    assert not _is_alive(child)


def test_a_command_that_ends_before_it_serves_is_told_with_its_last_words(tmp_path: Path) -> None:
    broken = _contender(tmp_path, "raise SystemExit('no card here')")
    with (
        pytest.raises(ContenderDiedError, match="ended with 1:\nno card here"),
        start(broken, tmp_path),
    ):
        pytest.fail("it does not serve")


def test_a_command_that_never_serves_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that stands still until the command has said something."""
    log = tmp_path / "one_0.log"
    clock = SimpleNamespace(monotonic=lambda: float(2 * log.stat().st_size), sleep=time.sleep)
    monkeypatch.setattr(contender_process, "time", clock)
    silent = _contender(tmp_path, "import time; print('hm', flush=True); time.sleep(600)")
    quick = replace(silent, start_timeout_s=1.0)
    with (
        pytest.raises(ContenderDiedError, match="not ready after 1 s:\nhm"),
        start(quick, tmp_path),
    ):
        pytest.fail("it does not serve")


def test_a_server_that_dies_in_mid_run_is_noticed(tmp_path: Path) -> None:
    with start(_contender(tmp_path, PARENT, "$port0"), tmp_path) as started:
        process = started.processes[0]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with pytest.raises(ContenderDiedError, match="ended with -9"):
            started.check()
