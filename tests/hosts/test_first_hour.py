"""The first hour of an operator: steps on a cluster of two hosts, under load, by commands
alone."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.deploy.revisions import another_revision
from tests.hosts.certificates import FLAGS
from tests.hosts.fake_hosts import Network
from tests.hosts.ray_hosts import wait_until
from tests.hosts.test_agents import PYTHON, SECRET, Cluster
from twolane.cli.app import app

pytestmark = pytest.mark.timeout(900)
WORKERS = [f"{role}-{n}" for role in ("prefill", "decode") for n in range(6)]
# Asks again and again, until it is told to stop; every answer must be whole.
CLIENT = """
import os, sys, twolane
with twolane.Client(sys.argv[1]) as client:
    n = 0
    while not os.path.exists("/tmp/enough"):
        n += 1
        how = {"max_tokens": 1200, "ignore_eos": True, "request_id": f"story-{n}"}
        answer = client.generate("once upon a time", **how)
        assert answer.ledger.output_tokens == 1200, answer
        print(n, flush=True)
print("no error", flush=True)
"""


class Terminal:
    """The operator's, at a cluster of two hosts. Commands run here, where the hosts' sockets are
    seen."""

    def __init__(self, network: Network, log_dir: Path) -> None:
        cluster = self.cluster = Cluster(network, log_dir, WORKERS)
        self.n_steps = 0
        self._log_dir = log_dir
        self._begun = time.monotonic()
        self.a, self.b = cluster.hosts
        self.keys = self.a.root / "tmp/keys.yaml"
        self.key, self.key_id = self.create_key()
        hosts = [
            {"name": host.name, "agent": f"{host.ip}:7210", "seats": 3} for host in cluster.hosts
        ]
        pools = [{"role": "prefill"}, {"role": "decode", "workers": 2}]
        topology = {"launcher": "agents", "hosts": hosts, "pools": pools}
        (self.a.root / "tmp/t.yaml").write_text(json.dumps(topology))
        self.a.bg(
            f"{PYTHON} twolane.cli up --json --topology /tmp/t.yaml {SECRET} {FLAGS} --engine fake "
            "--keys /tmp/keys.yaml --heartbeat-s 0.3 --suspicion-s 5 --lease-s 10",
            log_dir / "up.log",
        )
        self.ready = cluster.until("ready")
        (self.socket,) = (self.a.root / "tmp").glob("twolane-*/admin.sock")

    def create_key(self) -> tuple[str, str]:
        told = self.local("auth create-key --tenant acme --keys", str(self.keys))
        found = re.search(r"tl_([A-Za-z0-9]+)_\S+", told)
        assert found, told
        return found[0], found[1]

    def local(self, line: str, *more: str, code: int = 0) -> str:
        """What a command prints that needs no router."""
        done = CliRunner().invoke(app, [*shlex.split(line), *more], catch_exceptions=False)
        assert done.exit_code == code, done.output
        return done.output

    def step(self, line: str, *, code: int = 0) -> str:
        """What a command prints."""
        self.n_steps += 1
        told = self.local(line, "--endpoint", f"unix:{self.socket}", code=code)
        print(f"{time.monotonic() - self._begun:6.1f} s  {self.n_steps:2}  {line}")
        return told

    def json(self, line: str) -> Any:
        return json.loads(self.step(f"{line} --json"))

    def is_well(self) -> bool:
        """Whether the doctor finds nothing."""
        self.n_steps += 1
        line = ["doctor", "--endpoint", f"unix:{self.socket}"]
        return CliRunner().invoke(app, line, catch_exceptions=False).exit_code == 0

    def one_that_runs(self) -> str:
        """The submission id of a request that runs."""
        self.n_steps += 1
        found: list[str] = []

        def look() -> bool:
            listed = ("--endpoint", f"unix:{self.socket}")
            found[:] = self.local("requests list -q", *listed).split()
            return bool(found)

        wait_until(look)
        return found[0]

    def ask(self, key: str) -> str:
        """A client's command on host a; what it prints, or its error."""
        self.n_steps += 1
        return self.a.run(
            f"TWOLANE_API_KEY={key} {PYTHON} twolane.cli generate Once --max-tokens 5 "
            f"--endpoint {self.ready['endpoint']} 2>&1 || true"
        )

    def start_load(self) -> Path:
        (self.a.root / "tmp/client.py").write_text(CLIENT)
        log = self._log_dir / "client.log"
        command = f"{PYTHON.removesuffix(' -P -m')} /tmp/client.py {self.ready['endpoint']}"
        self.a.bg(f"export TWOLANE_API_KEY={self.key}; {command}", log)
        wait_until(lambda: log.exists() and bool(log.read_text().strip()))
        return log

    def places(self) -> dict[str, str]:
        alive = [w for w in self.cluster.status().workers if w.state == "alive"]
        return {worker.worker_id: worker.host for worker in alive}

    def signal(self, name: str, signal: str) -> None:
        """To the latest process of that name, on its host."""
        events = self.cluster.events()
        pids = [e["pid"] for e in events if (e["kind"], e.get("name")) == ("started", name)]
        workers = self.cluster.status().workers
        place = next(its.host for its in workers if its.worker_id == name and its.is_here)
        (self.a if place == "a" else self.b).run(f"kill -{signal} {pids[-1]}")


def test_the_first_hour_of_an_operator(network: Network, tmp_path: Path) -> None:
    terminal = Terminal(network, tmp_path)
    cluster = terminal.cluster
    wait_until(lambda: len(terminal.places()) == 3)
    log = terminal.start_load()

    # What is there?
    assert "decode-1" in terminal.step("status")  # 1
    up = {"a": "up", "b": "up"}
    wait_until(lambda: {h["name"]: h["state"] for h in terminal.json("status")["hosts"]} == up)  # 2
    assert "tokens/s" in terminal.step("top --once")  # 3
    wait_until(terminal.is_well)  # 4
    assert "checks held" in terminal.step("pages --check")  # 5
    assert terminal.json("logs router-0 -n 500")["lines"]  # 6

    # Follow a request.
    name = terminal.one_that_runs()  # 7
    assert "no requests match" in terminal.step("requests list --tenant nobody")  # 8
    assert "prefill" in terminal.step(f"requests trace {name}")  # 9
    file = tmp_path / "trace.json"
    terminal.step(f"requests trace {name} --perfetto {file}")  # 10
    assert json.loads(file.read_text())["traceEvents"]
    assert "story-" in terminal.step(f"requests show {name}")  # 11
    assert terminal.json("requests list --ended")["requests"]  # 12

    # Find the worker that is not heard, and let it go on.
    terminal.signal("decode-1", "STOP")
    wait_until(lambda: "decode-1" not in terminal.places())
    assert "not heard: decode-1" in terminal.step("top --once")  # 13
    assert "decode-1" in terminal.step("doctor", code=1)  # 14
    terminal.signal("decode-1", "CONT")
    wait_until(lambda: "decode-1" in terminal.places())

    # Drain a worker, look what is in the way, undo.
    assert "alive > draining" in terminal.step("drain decode-0 --dry-run")  # 15
    assert "may be killed" in terminal.step("drain decode-0 --wait --hand-over --reason dust")  # 16
    assert "takes new requests" in terminal.step("drain decode-0 --undo")  # 17

    # Drain a host, and open it again.
    emptied = terminal.places()["decode-1"]
    n_there = [*terminal.places().values()].count(emptied)
    assert "this would be done" in terminal.step(f"drain-node {emptied} --dry-run")  # 18
    told = terminal.step(f"drain-node {emptied} --yes --hand-over --reason 'new fans'")  # 19
    assert f"{emptied} is safe" in told
    assert n_there
    wait_until(lambda: len(terminal.places()) == 3)
    assert emptied not in terminal.places().values()
    terminal.step(f"uncordon {emptied} --yes")  # 20

    # Sizes.
    assert "decode" in terminal.step("scale decode=9 --dry-run", code=2)  # 21: no room
    terminal.step("scale decode=3 --yes --wait --reason launch")  # 22
    wait_until(lambda: len(terminal.places()) == 4)
    terminal.step("scale decode=auto --yes")  # 23
    wait_until(lambda: len(terminal.places()) == 3)

    # Another revision of the model, and back; the only prefill worker has a second one meanwhile.
    start = "rollout start /tmp/v2 --extra-workers 1"
    another_revision(terminal.a.root / "tmp/v2")
    said: list[str] = []

    def is_refused_by_its_files() -> bool:
        """False until the worker that is too many, which is no longer alive, is gone."""
        said.append(terminal.step(f"{start} --yes", code=2))
        return "wait until" not in said[-1]

    wait_until(is_refused_by_its_files)
    assert "b: there is no directory /tmp/v2" in said[-1]
    another_revision(terminal.b.root / "tmp/v2", seed=2)
    assert "hosts have different files in /tmp/v2" in terminal.step(f"{start} --yes", code=2)
    assert not any(worker["state"] == "draining" for worker in terminal.json("status")["workers"])
    shutil.rmtree(terminal.b.root / "tmp/v2")
    another_revision(terminal.b.root / "tmp/v2")
    assert "this would be done" in terminal.step(f"{start} --dry-run")  # 24
    told = terminal.step(f"{start} --yes --canary 20% --wait --timeout-s 240 --reason v2")  # 25
    assert "canary" in told
    assert "resume or undo" in terminal.step("rollout status")  # 26
    assert "undone" in terminal.step("rollout undo --yes --wait --timeout-s 240")  # 27
    wait_until(lambda: len(terminal.places()) == 3)

    # Kill and fence, and read what happened.
    victim = next(its for its in terminal.places() if its.startswith("decode"))
    former = cluster.epoch(victim)
    assert "(proof of class A)" in terminal.step(f"fence {victim} --yes --reason hangs")  # 28
    wait_until(lambda: cluster.epoch(victim) not in (former, 0))
    gone = terminal.json("events --kind worker.gone")["events"]  # 29
    assert any(event["subject"] == victim for event in gone)
    acts = terminal.json("events --audit")["events"]  # 30
    reasons = {event["audit"]["what"]: event["audit"]["reason"] for event in acts}
    assert (reasons["fence"], reasons["drain"]) == ("hangs", "dust")

    # A key is revoked.
    second, second_id = terminal.create_key()
    wait_until(lambda: "unknown" not in terminal.ask(second))  # 31
    terminal.local(f"auth revoke {second_id} --keys", str(terminal.keys))  # 32
    terminal.n_steps += 1
    wait_until(lambda: "revoked" in terminal.ask(second))  # 33

    # Nobody has noticed.
    (terminal.a.root / "tmp/enough").touch()
    wait_until(lambda: "no error" in log.read_text())
    terminal.step(f"bundle {tmp_path / 'terminal.tar.gz'}")  # 34
    assert terminal.a.run(f"{PYTHON} twolane.cli down --yes", timeout_s=120) == "stopped\n"
    assert terminal.n_steps >= 34
