"""Commands that change the cluster say what they will do, ask, and exit as documented."""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.twolane.conftest import Door
from tests.twolane.ops.looks import looks
from tests.twolane.ops.scripted_admin import ScriptedAdmin
from tests.twolane.ops.test_golden_output import COMMANDS
from twolane.admin import AdminClient
from twolane.cli.app import app
from twolane.cli.controller import ControllerClient
from twolane.cli.ops.kill import until_ended
from twolane.config import CONTROLLER_SOCKET_NAME
from twolane.deploy.cli.down_command import down as down_elsewhere
from twolane.errors import UnavailableError
from twolane.v1 import cluster_pb2, worker_pb2


def run(door: Door, line: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, [*line.split(), "--endpoint", door.admin], input=typed)


# As in the list of golden outputs, and those that the launcher does.
ASK = [line.removesuffix(" --yes") for line in COMMANDS.values() if line.endswith(" --yes")]
ASK += ["fence --host node-b --i-saw-it-off", "down"]


@pytest.mark.parametrize("line", ASK)
def test_nothing_is_done_where_nobody_can_be_asked(line: str, door: Door) -> None:
    done = run(door, line)
    assert done.exit_code == 2
    look = "" if line == "down" else "look with --dry-run, then "
    assert f"standard input is no terminal, so nobody can be asked: {look}say --yes" in done.output


def test_requests_that_would_end_are_named_before_the_question(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twolane.cli.ops.changing.can_ask", lambda: True)
    refused = run(door, "requests cancel r1", "n\n")
    assert refused.exit_code == 130
    assert "these requests end, with CANCELLED: r1 (3f2a9c1e)" in refused.output
    assert "running > " not in refused.output


def test_the_plan_is_shown_before_the_question(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twolane.cli.ops.changing.can_ask", lambda: True)
    refused = run(door, "scale decode=3", "n\n")
    assert refused.exit_code == 130
    assert "  decode-2: starts on node-b" in refused.output
    assert refused.output.rstrip().endswith("Nothing is done.")
    assert run(door, "scale decode=3", "y\n").exit_code == 0


@pytest.mark.parametrize("verb", ["kill", "fence"])
def test_a_death_that_is_not_proven_exits_with_5(verb: str, door: Door) -> None:
    done = run(door, f"{verb} decode-9 --yes")
    assert done.exit_code == 5
    assert "Error: not proven: node-z silent; no fence command" in done.output


@pytest.mark.parametrize("verb", ["kill", "fence"])
def test_who_waits_for_a_proof_is_told_what_for(
    verb: str, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twolane.cli.waiting._LOOK_S", 0.001)
    monkeypatch.setattr(ScriptedAdmin, "kill_looks", 6)  # the last may end it before it is told
    line = f"{verb} prefill-1 --yes --json"
    told = "waiting: no proof yet that prefill-1 has ended; it is suspect"
    done = run(door, line)
    assert done.stderr == f"{told}\n", "once, for nothing has changed"
    assert json.loads(done.stdout)["proof_class"] == "A"
    monkeypatch.setattr("twolane.cli.waiting._AGAIN_S", 0.0)
    assert re.fullmatch(rf"{told}\n({told} \(\d+ s\)\n){{2,}}", run(door, line).stderr)


def test_where_a_worker_may_still_run_its_silent_host_is_named(
    door: Door, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = cluster_pb2.HostStatus
    hosts = [
        host(name="node-a", state="silent", workers=["w-1"]),
        host(name="node-b", state="silent", workers=["w-0"], note="fence command"),
    ]
    found = cluster_pb2.GetClusterStatusResponse(hosts=hosts)
    with AdminClient(door.admin) as admin:
        monkeypatch.setattr(admin, "call", lambda *_, **__: found)
        told = "no proof yet that w-0 has ended; its host node-b is silent (fence command)"
        assert until_ended(admin, "w-0") == told
        assert until_ended(admin, "w-2") == "no proof yet that w-2 has ended"
    with AdminClient(f"unix:{tmp_path}/none.sock") as admin:
        assert until_ended(admin, "w-0").startswith("the router does not answer: no cluster")


@pytest.mark.parametrize(
    ("states", "told"),
    [
        (["gone", "alive"], "no proof yet that w-0 has ended; it is alive"),
        (["gone", "gone", "suspect"], "no proof yet that w-0 has ended; it is suspect"),
        (["gone", "gone"], "no proof yet that w-0 has ended; the router counts it as gone"),
    ],
)
def test_earlier_incarnations_are_not_taken_for_the_one_that_is_to_end(
    states: list[str], told: str, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = worker_pb2.WorkerAddress(worker_id="w-0")
    workers = [cluster_pb2.WorkerStatus(worker=worker, state=state) for state in states]
    found = cluster_pb2.GetClusterStatusResponse(workers=workers)
    with AdminClient(door.admin) as admin:
        monkeypatch.setattr(admin, "call", lambda *_, **__: found)
        assert until_ended(admin, "w-0") == told


def test_a_check_that_finds_a_difference_exits_with_1_and_names_it(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedAdmin, "is_broken", True)
    done = run(door, "check")
    assert done.exit_code == 1
    assert "different: prefill-0 > decode-0 (1 of 3 comparisons)" in done.output
    assert "prompt of 33 tokens, token 17: token 9 instead of 7" in done.output


def test_sizes_that_changed_meanwhile_exit_with_2(door: Door) -> None:
    done = run(door, "scale decode=3 --yes --expect-revision 5")
    assert done.exit_code == 2
    assert "sizes are at revision 7, not 5" in done.output


def test_a_wait_says_what_is_left_and_ends_with_the_size_that_was_asked_for(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = cluster_pb2.PoolStatus
    left = [
        [],  # a router that has just started
        [pool(pool="decode", workers=2, alive=2)],  # told before the act
        [pool(pool="decode", workers=3, alive=2, starting=1)],
        [pool(pool="decode", workers=3, alive=2, starting=1)],
        [pool(pool="decode", workers=3, alive=3)],
    ]
    monkeypatch.setattr("twolane.cli.ops.scale._pools", lambda _: left.pop(0))
    monkeypatch.setattr("twolane.cli.ops.scale._POLL_S", 0.0)
    done = run(door, "scale decode=3 --yes --wait")
    assert done.exit_code == 0, done.output
    assert [line for line in done.stderr.splitlines() if line.startswith("waiting")] == [
        "waiting: decode: no controller has told this router of it",
        "waiting: decode: is to have 2, not 3",
        "waiting: decode: 2 of 3 alive, 1 starting",
    ]
    assert left == []


def test_a_wait_outlives_the_router_that_it_asks(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = UnavailableError("it ends")
    pool = cluster_pb2.PoolStatus
    short, whole = (pool(pool="decode", workers=3, alive=n) for n in (2, 3))
    pools = looks([short], gone, gone, [whole])
    monkeypatch.setattr("twolane.cli.ops.scale._pools", pools)
    monkeypatch.setattr("twolane.cli.ops.scale._POLL_S", 0.0)
    monkeypatch.setattr("twolane.cli.patience._EVERY_S", 0.0)
    done = run(door, "scale decode=3 --yes --wait")
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines()[-1] == "the router answers again"


def test_a_wait_ends_when_another_size_is_wanted_by_then(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = cluster_pb2.PoolStatus
    left = [
        [pool(pool="decode", workers=3, alive=2)],
        [],  # the router was replaced
        [pool(pool="decode", workers=1, alive=2, draining=1)],
    ]
    monkeypatch.setattr("twolane.cli.ops.scale._pools", lambda _: left.pop(0))
    monkeypatch.setattr("twolane.cli.ops.scale._POLL_S", 0.0)
    done = run(door, "scale decode=3 --yes --wait")
    assert done.exit_code == 5
    assert "the size of decode was changed: decode: is to have 1, not 3" in done.output
    assert left == []


def test_a_drain_of_a_host_says_what_is_left_until_it_is_safe(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = cluster_pb2.HostStatus
    left = [
        None,  # a router that has just started
        host(name="node-c", state="up"),  # told before the act
        host(name="node-c", state="up", cordoned=True, workers=["decode-1", "prefill-1"]),
        host(name="node-c", state="silent", cordoned=True, workers=["decode-1"]),
        host(name="node-c", state="up", cordoned=True),
    ]
    monkeypatch.setattr("twolane.cli.ops.hosts._status", lambda *_: left.pop(0))
    monkeypatch.setattr("twolane.cli.ops.hosts._POLL_S", 0.0)
    done = run(door, "drain-node node-c --yes")
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == [
        "node-c: no controller has told this router of it",
        "node-c: it is not cordoned",
        "node-c: still there: decode-1, prefill-1",
        "node-c: it is silent: decode-1 may still run there",
    ]
    safe = "node-c is safe: no worker is left there, but router-1 would end with it\n"
    assert done.stdout.endswith(safe)
    assert left == []


@pytest.mark.parametrize("size", ["decode", "decode=", "=3", "decode=-1", "decode=many"])
def test_a_size_that_is_none_is_named(size: str, door: Door) -> None:
    done = run(door, f"scale {size} --yes")
    assert done.exit_code == 2
    assert repr(size) in done.output


def test_a_drain_leaves_its_reason_and_a_dry_one_names_what_is_in_the_way(door: Door) -> None:
    n_drained = len(door.script.drained)
    dry = run(door, "drain decode-0 --dry-run")
    assert dry.output.splitlines() == [
        "this would be done:",
        "  decode-0: alive > draining",
        "  first: 2 requests (r1, batch-7) are answered there",
    ]
    assert len(door.script.drained) == n_drained
    assert run(door, "drain decode-0 --reason dust").exit_code == 0
    assert door.script.reasons[-1] == "dust"


def test_a_fence_without_routers_here_goes_to_the_launcher(
    door: Door, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("TWOLANE_ENDPOINT", raising=False)
    folder = tmp_path / "twolane-1-launcher"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as launcher:
        launcher.bind(str(folder / CONTROLLER_SOCKET_NAME))
        launcher.listen()
        shown = CliRunner().invoke(app, ["fence", "decode-0", "--dry-run"])
        assert shown.output == "this would be done:\n  decode-0 is killed, and started again\n"
        shown = CliRunner().invoke(app, ["fence", "decode-0", "--dry-run", "--json"])
        assert json.loads(shown.output)["changes"][0]["after"] == "is killed, and started again"
        (folder / "admin.sock").symlink_to(door.admin.removeprefix("unix:"))
        shown = CliRunner().invoke(app, ["fence", "decode-0", "--dry-run"])
        assert "decode-0: runs on node-b > is killed, and started again" in shown.output


@pytest.mark.parametrize(
    ("proof", "its_class"),
    [
        ("decode-0 was killed by SIGKILL (proof of class A)", "A"),
        ("decode-0's host has booted since (proof of class B)", "B"),
        ("node-b is off: proof of class C", "C"),
        ("decode-0 has ended", ""),
    ],
)
def test_a_fence_at_the_launcher_asks_in_a_sentence_and_tells_the_class_of_its_proof(
    proof: str, its_class: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("twolane.cli.ops.changing.can_ask", lambda: True)
    monkeypatch.setattr(ControllerClient, "fence", lambda *_: proof)
    socket_path = f"unix:{tmp_path / CONTROLLER_SOCKET_NAME}"
    arguments = ["fence", "decode-0", "--json", "--endpoint", socket_path]
    done = CliRunner().invoke(app, arguments, input="y\n")
    assert done.stderr.startswith("decode-0 is killed, and started again\nDo that?")
    told = json.loads(done.stdout[done.stdout.index("{") :])
    assert (told["proof"], told["proof_class"]) == (proof, its_class)


def test_down_of_other_hosts_tells_programs_so_too(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The command becomes another one, which reads its arguments."""
    monkeypatch.setattr("twolane.deploy.cli.down_command._end_on_ray", lambda *_: None)
    monkeypatch.setattr("twolane.deploy.cli.down_command.take_over", lambda stdout, others: stdout)
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execve", lambda _, command, __: became.append(command))
    arguments = ["down", "--ray-address", "auto", "--cluster", "blue", "--yes", "--json"]
    CliRunner().invoke(app, [*arguments, "--endpoint", "unix:/none.sock"])
    (command,) = became
    down_elsewhere(command[command.index("down") + 1 :], standalone_mode=False)
    told = json.loads(capfd.readouterr().out)
    assert told == {"schema": "twolane.Stopped", "stopped": "blue"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--cluster blue", "--cluster needs the --ray-address of its Ray"),
        ("--cluster default", "--cluster needs the --ray-address of its Ray"),
        ("--cluster blue --topology f.yaml", "--cluster needs the --ray-address of its Ray"),
        ("--secret-file s", "--secret-file needs the --topology of its cluster"),
        ("--secret-file s --ray-address auto", "--secret-file needs the --topology of its cluster"),
    ],
)
def test_down_refuses_what_it_would_not_look_at(
    options: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[object] = []
    monkeypatch.setattr(ControllerClient, "stop", lambda *what: ended.append(what))
    monkeypatch.setattr(os, "execve", lambda *what: ended.append(what))
    done = CliRunner().invoke(app, ["down", "--yes", *options.split()])
    assert (done.exit_code, ended) == (2, [])
    assert why in done.output


def test_down_is_not_done_without_a_yes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("twolane.cli.ops.changing.can_ask", lambda: True)
    arguments = ["down", "--endpoint", f"unix:{tmp_path}/launcher.sock"]
    done = CliRunner().invoke(app, arguments, input="n\n")
    assert done.exit_code == 130
    assert f"the cluster in {tmp_path} ends, with all its requests" in done.output


UNTOLD = "not told yet: the controller's settings (scaler.…), which it tells each second"


@pytest.mark.parametrize(
    ("line", "is_said"),
    [
        ("config get", True),
        ("config diff", True),
        ("config get scaler", True),
        ("config get scaler.budget log_level", True),
        ("config get router log_level", False),
    ],
)
def test_settings_that_no_controller_has_told_are_named_where_they_are_missing(
    line: str, is_said: bool, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert UNTOLD not in run(door, line).output
    monkeypatch.setattr(ScriptedAdmin, "is_new", True)
    assert (UNTOLD in run(door, line).output) is is_said


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("", "no request waits or runs; --ended lists those that ended lately"),
        ("--tenant nobody", "no requests match"),
        ("--ended", "no request has ended lately"),
        ("--ended --worker decode-0", "no request has ended lately that matches"),
    ],
)
def test_an_empty_list_of_requests_says_what_it_looked_for(
    options: str, told: str, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedAdmin, "is_new", True)
    assert run(door, f"requests list {options}").output.splitlines() == [told]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("", "2 requests, 1 of these wait"),
        ("--limit 1", "2 requests, 0 of those shown wait"),
        (
            "--ended --limit 1",
            "2 requests ended lately, 1 of those shown without an answer; 1 more",
        ),
    ],
)
def test_a_list_that_is_cut_says_what_it_has_counted(options: str, told: str, door: Door) -> None:
    assert run(door, f"requests list {options}").output.startswith(told)
