"""Every command that `twolane doctor` tells people to type is one that works as it stands."""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.router.operators.test_diagnosis import (
    PLANTED,
    blocked,
    healthy,
    no_decode,
    quarantine,
    rollout_without_a_step,
    skew,
    stuck,
)
from tests.twolane.conftest import Door
from tests.twolane.ops.test_golden_of_others import command_of
from twolane.cli.app import app
from twolane.cli.examples import leaves
from twolane.config import CONTROLLER_SOCKET_NAME
from twolane.deploy.cli.up_command import up as launcher_up
from twolane.router.operators.diagnosis import Facts, diagnose

Plant = Callable[[Facts], None]


def nobody_decodes(facts: Facts) -> None:
    """A pool that has no worker and is to have none."""
    facts.status.workers[1].state, facts.status.workers[1].pool = "gone", "writers"


def pool_that_does_not_come_up(facts: Facts) -> None:
    nobody_decodes(facts)
    facts.status.pools.add(pool="writers", workers=2)


def other_router(facts: Facts) -> None:
    facts.processes["router-0"].version = "1.1"


def suspect(facts: Facts) -> None:
    facts.status.workers[1].state = "suspect"


def quarantine_of_a_lost_writer(facts: Facts) -> None:
    quarantine(facts)
    facts.status.workers.add(state="suspect").worker.worker_id = "prefill-1"


def undoing_without_a_step(facts: Facts) -> None:
    rollout_without_a_step(facts, "undoing")
    del facts.status.rollout.workers[:]


ALL: list[Plant] = [plant for plant, _ in PLANTED]
ALL += [nobody_decodes, pool_that_does_not_come_up, other_router, suspect]
ALL += [quarantine_of_a_lost_writer, undoing_without_a_step]
# No command can do it.
IN_WORDS = {"lost_router", "store_down", "two_models", "other_router"}
PLACES = {"FILE": "cluster.yaml", "PID": "4711", "HOST": "localhost"}


def commands_for(plant: Plant) -> list[str]:
    facts = healthy()
    plant(facts)
    findings = diagnose(facts)
    assert findings
    return [line for its in findings for line in re.findall(r"`([^`]+)`", its.mend)]


LINES = sorted({line for plant in ALL for line in commands_for(plant)})


@pytest.mark.parametrize("plant", ALL, ids=lambda plant: plant.__name__)
def test_each_finding_has_a_command_unless_none_can_do_it(plant: Plant) -> None:
    assert bool(commands_for(plant)) is (plant.__name__ not in IN_WORDS)


def typed(line: str) -> str:
    for place, instead in PLACES.items():
        line = re.sub(rf"\b{place}\b", instead, line)
    assert not re.search(r"\b[A-Z]{3,}\b", line.replace("KILL", "")), "a place nobody can fill in"
    return line


@pytest.mark.parametrize("line", [its for its in LINES if its.startswith("twolane ")])
def test_each_command_of_ours_is_taken_as_it_stands(
    line: str, door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What acts, on a cluster, as a dry run; what makes files, for certificates, in earnest."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TWOLANE_ENDPOINT", door.admin)
    (tmp_path / "cluster.yaml").write_text("pools: [{role: both}]\n")
    arguments = shlex.split(typed(line))[1:]
    if arguments[0] == "up":
        launcher_up.make_context("up", arguments[1:])
        return
    if arguments[0] == "certs":
        CliRunner().invoke(app, ["certs", "init"] + ["--dir", "tls"] * (arguments[1] == "issue"))
        if arguments[1] == "renew":
            CliRunner().invoke(app, ["certs", "issue", "worker/decode-0"])
    elif arguments == ["fence"]:  # which one, the line says in words
        arguments += ["decode-0", "--dry-run"]
    elif "--host" in arguments:  # the launcher's
        arguments += ["--endpoint", f"unix:{tmp_path}/{CONTROLLER_SOCKET_NAME}", "--dry-run"]
    elif "--dry-run" in options_of(" ".join(arguments)):
        arguments.append("--dry-run")
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output


def options_of(line: str) -> set[str]:
    command: click.Command = leaves(app)[command_of(line)]
    return {option for parameter in command.params for option in parameter.opts}


OTHERS = [its for its in LINES if not its.startswith("twolane ")]


def test_commands_of_the_system_are_these() -> None:
    """`mount` and `ulimit` mend a cluster in tests/hosts/test_doctor.py."""
    programs = {"du", "kill", "mount", "nc", "timedatectl", "ulimit"}
    assert {line.split()[0] for line in OTHERS} == programs


@pytest.mark.parametrize("line", OTHERS)
def test_each_command_of_the_system_is_one(line: str) -> None:
    line = typed(line)
    assert subprocess.run(["bash", "-n", "-c", line], check=False).returncode == 0
    program = line.split()[0]
    if program == "ulimit":
        limited = f"ulimit -n 256; {line.replace('65536', '128')}; ulimit -n"
        done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, check=True)
        assert done.stdout == "128\n"
    if program == "kill":
        subprocess.run(["bash", "-c", "sleep 60 & " + line.replace("4711", "$!")], check=True)
    if program == "nc" and shutil.which("nc") is not None:
        with socket.socket() as there:
            there.bind(("127.0.0.1", 0))
            there.listen()
            host, port = there.getsockname()
            words = line.split()[:-2]
            subprocess.run([*words, host, str(port)], check=True, capture_output=True)


def test_names_in_the_lines_are_those_of_the_cluster() -> None:
    assert commands_for(no_decode) == ["twolane drain decode-0 --undo"]
    assert commands_for(nobody_decodes) == ["twolane scale writers=1"]
    assert commands_for(stuck) == ["twolane fence decode-0"]
    assert commands_for(blocked) == ["nc -vz 10.0.0.1 7300"]
    assert commands_for(quarantine_of_a_lost_writer)[-1] == "twolane fence prefill-1"
    assert commands_for(skew) == [
        "twolane drain decode-0 --wait --take",
        "twolane fence decode-0",
    ]
