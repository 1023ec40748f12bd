"""What `--help` shows as examples works as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.twolane.conftest import Door
from tests.twolane.ops.test_golden_of_others import TRACE, launcher
from twolane.cli.app import app
from twolane.cli.completion import SHELLS, VARIABLE
from twolane.cli.examples import EXAMPLES, leaves
from twolane.cli.fence import down
from twolane.deploy.cli.plan_command import plan as planner
from twolane.deploy.cli.up_command import up as launcher_up
from twolane.v1 import cluster_pb2

OPERATORS = {"bundle", "console", "drain", "events", "fence", "logs", "pages", "requests", "top"}
OPERATORS |= {"check", "config", "doctor", "scale", "kill", "cordon", "uncordon", "drain-node"}
OPERATORS |= {"flip", "scaler", "rollout"}
UNDONE = cluster_pb2.RolloutStatus(state="undone")
# They start or end processes, and are run in tests/deploy: here they are parsed.
PARSED = {"up": launcher_up, "down": down}


def test_every_command_has_an_example_and_shows_it() -> None:
    assert {*leaves(app)} == {*EXAMPLES}
    for words, command in leaves(app).items():
        for line in EXAMPLES[words]:
            assert f"twolane {words}" in line
            assert f"  {line}" in str(command.epilog)


def arguments_of(line: str) -> tuple[list[str], str]:
    """Of the command in a line of a shell, and what it reads."""
    before, _, rest = line.rpartition(" | ")
    stdin = before.removeprefix("echo ")
    rest = re.sub(r'^eval "\$\((.*)\)"$', r"\1", rest).partition(" && ")[0].partition(" > ")[0]
    return shlex.split(rest)[1:], stdin


@pytest.fixture
def home(door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody's own, with a cluster's context."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("SHELL", "/bin/bash")
    monkeypatch.setenv("TWOLANE_ENDPOINT", door.endpoint)
    for folder in (tmp_path / "config" / "twolane", tmp_path / ".config" / "twolane"):
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(f"[contexts.staging]\nendpoint = '{door.endpoint}'\n")
    (tmp_path / "requests.csv").write_text(TRACE)
    return tmp_path


def run(line: str, key_id: str) -> Result:
    arguments, stdin = arguments_of(line.replace("KEY_ID", key_id))
    stdin = stdin or "y\n"  # the requests that are signed are ours
    if arguments[0] == "plan":  # which the command becomes
        return CliRunner().invoke(planner, arguments[1:], catch_exceptions=False)
    return CliRunner().invoke(app, arguments, input=stdin, catch_exceptions=False)


EXITS = {"twolane pages --check": 5}  # a scripted worker has not answered


def test_each_example_does_what_it_says(
    home: Path, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_id = ""
    for words, lines in EXAMPLES.items():
        if words in PARSED:
            continue
        is_operators = words.split()[0] in OPERATORS
        monkeypatch.setenv("TWOLANE_ENDPOINT", door.admin if is_operators else door.endpoint)
        for line in lines:
            if "--watch" in line or "--follow" in line:
                continue  # it goes on until Ctrl-C: tests/twolane/test_cli.py
            if words == "certs sign":
                (request,) = home.rglob("decode-0.csr")
                line = line.replace("decode-0.csr", str(request))
            if words == "rollout undo":  # the scripted one is a canary for ever
                monkeypatch.setattr("twolane.cli.rollout._latest", lambda _: UNDONE)
            if "--i-saw-it-off" in line:  # only a launcher is told that
                with launcher(home / "run") as at:
                    done = run(f"{line} --endpoint {at}", key_id)
            else:
                done = run(line, key_id)
            assert done.exit_code == EXITS.get(line, 0), (line, done.output)
            if words == "auth create-key":
                (key_id,) = re.findall(r"key (\w+)", done.output)[:1]


@pytest.mark.parametrize("words", PARSED)
def test_examples_that_need_processes_have_options_that_exist(words: str) -> None:
    for line in EXAMPLES[words]:
        arguments, _ = arguments_of(line)
        PARSED[words].make_context(words, arguments[1:])


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_a_program_of_each_shell(shell: str) -> None:
    done = CliRunner().invoke(app, ["completion", shell])
    assert VARIABLE in done.output


def test_an_unknown_shell_is_told_which_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    done = CliRunner().invoke(app, ["completion"])
    assert done.exit_code == 2
    assert "no completion for tcsh: name one of bash, zsh, fish" in done.stderr


def test_tab_completes_the_workers_of_this_machine(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twolane.admin.only_socket", lambda: door.admin)
    monkeypatch.setattr("twolane.cli.completion._PATIENCE_S", 60.0)
    words = {VARIABLE: "bash_complete", "COMP_WORDS": "twolane drain dec", "COMP_CWORD": "2"}
    done = CliRunner().invoke(app, env=words, prog_name="twolane")
    assert done.output.splitlines() == ["plain,decode-0"]


def test_tab_completes_nothing_where_no_cluster_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    words = {VARIABLE: "bash_complete", "COMP_WORDS": "twolane drain ", "COMP_CWORD": "2"}
    done = CliRunner().invoke(app, env=words, prog_name="twolane")
    assert (done.output.strip(), done.stderr) == ("", "")
