"""A cluster over several agents on this machine, each of which stands for a host."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from tests.ports import free_ports, router_ports
from tests.processes import is_alive
from twolane import AdminClient, Client, DeadlineError, UnavailableError
from twolane.deploy.process.evidence import Evidence, read_evidence
from twolane.rpc.secret import new_secret
from twolane.status import ClusterStatus

AGENT = (sys.executable, "-m", "twolane.deploy", "agent")
CONTROLLER = (sys.executable, "-m", "twolane.deploy", "controller")
WITHIN_S = 60.0  # far more than anything here takes on a busy machine


def wait_until(holds: Callable[[], Any], within_s: float = WITHIN_S) -> Any:
    """The first true value of it."""
    end_s = time.monotonic() + within_s
    while not (value := holds()):
        assert time.monotonic() < end_s, "it did not come to hold"
        time.sleep(0.05)
    return value


class Launcher:
    """A `twolane up` and its events, as they come."""

    def __init__(self, topology: Path, environment: dict[str, str], *options: str) -> None:
        command = [sys.executable, "-m", "twolane.cli", "up", "--json", *options]
        self.process = subprocess.Popen(
            [*command, "--topology", str(topology)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.events: list[dict[str, Any]] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def until(self, kind: str, name: str = "", after: int = 0) -> dict[str, Any]:
        """The first such event, from that number on."""

        def found() -> dict[str, Any] | None:
            self._take()
            for event in self.events[after:]:
                if event["kind"] == kind and event.get("name", "") == name:
                    return event
            assert self.process.poll() is None, self.events
            return None

        event: dict[str, Any] = wait_until(found)
        return event

    def n_events(self) -> int:
        """How many have come so far."""
        self._take()
        return len(self.events)

    def number(self, event: dict[str, Any]) -> int:
        """Of one that `until` has returned."""
        return next(i for i, each in enumerate(self.events) if each is event)

    def kinds(self, name: str) -> list[str]:
        self._take()
        return [event["kind"] for event in self.events if event.get("name", "") == name]

    def kill(self) -> None:
        """The launcher itself: its front cleans up and ends."""
        (launcher,) = psutil.Process(self.process.pid).children()
        launcher.kill()
        self.close()

    def close(self) -> int:
        code = self.process.wait(WITHIN_S)
        self._reader.join()
        self._take()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def _take(self) -> None:
        while not self._lines.empty():
            self.events.append(json.loads(self._lines.get()))


class AgentCluster:
    """Hosts called node-a, node-b and so on; a context manager that leaves nothing behind."""

    def __init__(
        self,
        seats: Sequence[int],
        pools: Sequence[Mapping[str, Any]],
        *,
        of_hosts: Sequence[Mapping[str, Any]] = (),
        **topology: Any,
    ) -> None:
        """`of_hosts` is what the topology says of each beside its seats."""
        of_hosts = of_hosts or [{} for _ in seats]
        self.folder = Path(tempfile.mkdtemp(prefix="tw-"))
        secret = self.folder / "secret"
        secret.write_text(new_secret())
        self.environment = os.environ | {
            "TWOLANE_SECRET_FILE": str(secret),
            "TMPDIR": str(self.folder),
        }
        self.hosts = [f"node-{letter}" for letter in "abcdefgh"[: len(seats)]]
        of_router = router_ports(max(its.get("routers", 1) for its in of_hosts))
        del of_router["http_port"]
        ports = free_ports(len(seats))
        self.endpoint = f"127.0.0.1:{of_router['port']}"
        self._ports = dict(zip(self.hosts, ports, strict=True))
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self._launchers: list[Launcher] = []
        self._controllers: list[subprocess.Popen[bytes]] = []
        self.heartbeat = self.folder / "heartbeat"
        self.ready = self.folder / "ready"
        self.topology = self.folder / "cluster.yaml"
        self.topology.write_text(
            json.dumps(
                {
                    "launcher": "agents",
                    "hosts": [
                        {"name": host, "agent": f"127.0.0.1:{self._ports[host]}", "seats": n, **its}
                        for host, n, its in zip(self.hosts, seats, of_hosts, strict=True)
                    ],
                    "router": {**of_router, "no_http": True},
                    "pools": [{"engine": "fake", **pool} for pool in pools],
                    **topology,
                }
            )
        )

    def __enter__(self) -> Self:
        for host in self.hosts:
            self.start_agent(host)
        return self

    def __exit__(self, *error: object) -> None:
        for launcher in self._launchers:
            if launcher.process.poll() is None:
                launcher.kill()
            else:
                launcher.close()
        for process in (*self._controllers, *self.agents.values()):
            process.kill()
            process.wait()
        left = self.processes()
        for each in left:
            each.kill()
        wait_until(lambda: not any(map(is_alive, left)))  # nobody writes to the folder any more
        shutil.rmtree(self.folder)

    def start_agent(self, host: str, *options: str) -> None:
        """Returns when it serves."""
        listen = ["--listen", f"127.0.0.1:{self._ports[host]}"]
        state = ["--state-dir", str(self.folder / host), "--gpus", ""]
        with (self.folder / f"{host}.log").open("ab") as log:
            self.agents[host] = subprocess.Popen(
                [*AGENT, "--host-name", host, *listen, *state, *options],
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.environment,
            )
        agent = self.agents[host]
        assert agent.stdout is not None
        assert agent.stdout.readline(), (self.folder / f"{host}.log").read_text()
        agent.stdout.close()

    def kill_agent(self, host: str) -> None:
        self.agents[host].kill()
        self.agents[host].wait()

    def remake(self, host: str, *options: str) -> None:
        """A new pod of that name: its agent is new, and its disk is empty."""
        shutil.rmtree(self.folder / host)
        self.start_agent(host, *options)

    def controller(self) -> subprocess.Popen[bytes]:
        """It writes a heartbeat to `self.heartbeat`."""
        options = ["--topology", str(self.topology), "--heartbeat-file", str(self.heartbeat)]
        options += ["--ready-file", str(self.ready)]
        with (self.folder / "controller.log").open("ab") as log:
            started = subprocess.Popen([*CONTROLLER, *options], stderr=log, env=self.environment)
        self._controllers.append(started)
        return started

    def launcher(self, *options: str) -> Launcher:
        launcher = Launcher(self.topology, self.environment, *options)
        self._launchers.append(launcher)
        return launcher

    def evidence(self, name: str) -> Evidence:
        """Of the process of that name that runs."""
        (found,) = [
            evidence
            for host in self.hosts
            for evidence in read_evidence(self.folder / host)
            if evidence.name == name
        ]
        return found

    def pids(self) -> dict[str, int]:
        """Of all that runs, by name."""
        return {
            evidence.name: evidence.pid
            for host in self.hosts
            for evidence in read_evidence(self.folder / host)
        }

    def processes(self) -> list[psutil.Process]:
        """Routers and workers that live, whoever knows of them."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_ours = process.environ().get("TMPDIR") == str(self.folder)
                if is_ours and "--spec-from-stdin" in process.cmdline():
                    found.append(process)
        return found

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of the CLI."""
        return subprocess.run(
            [sys.executable, "-m", "twolane.cli", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env=self.environment,
        )

    def admin(self) -> AdminClient:
        (path,) = self.folder.glob("twolane-agent-*/admin.sock")
        return AdminClient(f"unix:{path}")

    def status(self) -> ClusterStatus:
        with self.admin() as admin:
            return admin.status()

    def alive(self) -> dict[str, str]:
        """The hosts of the workers that take work, by name; empty while no router answers."""
        try:
            workers = self.status().workers
        except (UnavailableError, DeadlineError):
            return {}
        return {its.worker_id: its.host for its in workers if its.state == "alive"}

    def answers(self, n_tokens: int = 4) -> bool:
        with Client(self.endpoint) as client:
            answer = client.generate(token_ids=[1, 2, 3], max_tokens=n_tokens, ignore_eos=True)
        return len(answer.tokens) == n_tokens


@contextlib.contextmanager
def stopped(*processes: psutil.Process) -> Iterator[None]:
    """They are frozen inside the block, as a host is that its network has lost."""
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    yield
    for process in processes:
        process.send_signal(signal.SIGCONT)
