"""A real Ray over fake hosts, and what a user does there."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.hosts.fake_hosts import Host, Network
from twolane.cli.controller import ControllerClient
from twolane.deploy.process.evidence import read_evidence

PYTHON = f"{sys.executable} -P"
_RAY = f"{PYTHON} -m ray.scripts.scripts"
_PORT, _REDIS_PORT = 6379, 6390
_CONTROL_STORE = "/gcs_server"
_ENV = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
    "RAY_enable_metrics_collection": "0",
    "TRITON_INTERPRET": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
# An error that Ray reports to every process that is connected to it, as it does when a node dies.
_ERRORS = """
import itertools, ray, time
from ray._private.utils import publish_error_to_driver
from ray._private.worker import global_worker
ray.init(address='auto', logging_level='ERROR', log_to_driver=False)
for number in itertools.count():
    publish_error_to_driver('test', f'test error {number}', global_worker.gcs_client)
    print(number, flush=True)
    time.sleep(0.05)
"""
_SMALL = "--num-cpus 1 --object-store-memory 80000000 --disable-usage-stats"


WITHIN_S = 180.0  # for whatever comes in seconds on an idle machine


class RayHosts:
    """The head on the first host, a raylet on each other one. Ray's control store keeps its tables
    in a Redis, also on the first host, so that another one may take over after it was killed."""

    def __init__(self, network: Network, log_dir: Path, *, n_hosts: int = 2) -> None:
        self.network = network
        self.hosts = [network.host(name) for name in "ab"[:n_hosts]]
        self.address = f"{self.hosts[0].ip}:{_PORT}"
        self._log_dir = log_dir
        self._starting: dict[str, subprocess.Popen[bytes]] = {}
        values = " ".join(f"{name}={value}" for name, value in _ENV.items())
        self._env = f"env -u TWOLANE_SECRET_FILE {values}"

    def start(self) -> None:
        a = self.hosts[0]
        a.bg(
            f"exec redis-server --bind {a.ip} --port {_REDIS_PORT} --protected-mode no --save ''",
            self._log_dir / "redis.log",
        )
        wait_until(lambda: _is_open(a.ip, _REDIS_PORT))
        self.start_on(a)
        for n, host in enumerate(self.hosts):
            if n:
                self.start_on(host)
            wait_until(lambda h=host, n=n: self.is_on(h, n), shows=self._logs)  # type: ignore[misc]

    def is_on(self, host: Host, n_others: int) -> bool:
        """Whether Ray has that node, beside others. Ray gives one 30 s to come up, too few on a
        busy machine: then it is started again."""
        code = self._starting[host.name].poll()
        if code:
            for pid in host.pids():
                if b"redis-server" not in command_of(pid) and b"twolane" not in command_of(pid):
                    os.kill(pid, signal.SIGKILL)
            self.start_on(host)
        return self.n_alive() == n_others + 1

    def _logs(self) -> dict[str, str]:
        return {path.name: path.read_text()[-2000:] for path in self._log_dir.iterdir()}

    def start_on(self, host: Host) -> None:
        where = f"--address {self.address} --block"
        env = self._env
        if host is self.hosts[0]:  # without --block, it lives on when its control store is killed
            where = f"--head --port {_PORT} --include-dashboard=false"
            env += f" RAY_REDIS_ADDRESS={host.ip}:{_REDIS_PORT}"
        self._starting[host.name] = host.bg(
            f"{env} {_RAY} start {where} --node-ip-address {host.ip} {_SMALL}",
            self._log_dir / f"ray-{host.name}.log",
        )

    def kill_control_store(self) -> Callable[[], None]:
        """Returns what starts it again, with the same command."""
        host = self.hosts[0]
        (pid,) = self.pids(host, _CONTROL_STORE)
        command = shlex.join(command_of(pid).decode().split("\0")[:-1])
        values = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")[:-1]
        self.kill(host, _CONTROL_STORE)
        wait_until(lambda: not self.pids(host, _CONTROL_STORE))

        def start() -> None:
            env = shlex.join(["env", "-i", *values])
            host.bg(f"exec {env} {command}", self._log_dir / "control-store.log")
            wait_until(lambda: _is_open(host.ip, _PORT))

        return start

    def n_alive(self) -> int:
        """Nodes that Ray calls alive."""
        look = (
            "import ray; ray.init(address='auto', logging_level='ERROR', log_to_driver=False); "
            "print(sum(node['Alive'] for node in ray.nodes()))"
        )
        try:
            return int(self.hosts[0].run(f'{self._env} {PYTHON} -c "{look}"').split()[-1])
        except Exception:  # noqa: BLE001  # it is starting
            return 0

    @contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Ray reports errors to everybody, as long as this lasts."""
        host = self.hosts[0]
        (host.root / "tmp/errors.py").write_text(_ERRORS)
        log = self._log_dir / "errors.log"
        reporter = host.bg(f"exec {self._env} {PYTHON} /tmp/errors.py", log)

        def reports() -> bool:
            assert reporter.poll() is None, log.read_text()
            return "\n1\n" in log.read_text()

        wait_until(reports)
        yield
        for pid in host.pids():
            if b"/tmp/errors.py" in command_of(pid):
                os.kill(pid, signal.SIGKILL)

    def twolane(self, host: Host, arguments: str, *, timeout_s: float = WITHIN_S) -> str:
        """What a command of ours prints there."""
        command = f"{self._env} {PYTHON} -m twolane.cli {arguments}"
        return host.run(command, timeout_s=timeout_s)

    def up(self, host: Host, arguments: str) -> list[dict[str, Any]]:
        """Start a cluster, or attach to it, from there. Returns its events."""
        command = f"up --json --launcher ray --ray-address {self.address} {arguments}"
        return [json.loads(line) for line in self.twolane(host, command).splitlines()]

    def up_bg(self, host: Host, arguments: str) -> None:
        """The same without waiting for it."""
        command = f"up --json --launcher ray --ray-address {self.address} {arguments}"
        host.bg(f"exec {self._env} {PYTHON} -m twolane.cli {command}", self._log_dir / "up.log")

    def launchers(self, host: Host) -> list[int]:
        """The pids of `twolane up` there, and of the processes that it has forked."""
        return [pid for pid in host.pids() if b"twolane.deploy.up\0" in command_of(pid)]

    def fence(self, worker: str) -> str:
        """As `twolane fence` does. Returns the proof."""
        (socket,) = (self.hosts[0].root / "tmp").glob("twolane-*/ctl.sock")
        with ControllerClient(f"unix:{socket}") as controller:
            return controller.fence(worker)

    def down(self, host: Host) -> None:
        said = self.twolane(host, f"down --yes --ray-address {self.address}")
        assert said == "stopped\n", said

    def kill(self, host: Host, program: str, number: signal.Signals = signal.SIGKILL) -> list[int]:
        """Send a signal to the processes whose program, or title, ends so; returns their pids."""
        pids = self.pids(host, program)
        assert pids, f"no {program} on {host.name}"
        for pid in pids:
            os.kill(pid, number)
        return pids

    def pids(self, host: Host, program: str) -> list[int]:
        """Of the processes there whose program, or title, ends so."""
        return [pid for pid in host.pids() if _program(pid).endswith(program)]

    def names(self, host: Host) -> dict[int, str]:
        """Who our processes there are that have not ended, by pid: they write it to disk before
        they open anything."""
        names = {each.pid: each.name for each in read_evidence(self._state(host))}
        mine = {pid: _pid_inside(pid) for pid in [*self.workers(host), *self.routers(host)]}
        return {pid: names[inside] for pid, inside in mine.items() if inside in names}

    def epochs_on_disk(self, host: Host) -> set[int]:
        """Of processes there that are not known to have ended."""
        return {each.epoch for each in read_evidence(self._state(host))}

    def _state(self, host: Host) -> Path:
        return host.root / "tmp/home/.twolane/default" / host.name

    def term(self, host: Host) -> int:
        """Of the controller whose commands its agent takes."""
        path = self._state(host) / "term"
        return int(json.loads(path.read_text())["number"])

    def workers(self, host: Host) -> list[int]:
        """The pids of workers there that have not ended."""
        return [pid for pid in host.pids() if b"twolane.deploy\0worker" in command_of(pid)]

    def routers(self, host: Host) -> list[int]:
        return [pid for pid in host.pids() if b"twolane.deploy\0router" in command_of(pid)]

    def kill_actor(self, prefix: str) -> None:
        """The one of ours whose name begins so, for good."""
        kill = (
            "import ray; from twolane.deploy.ray_cluster.connection import *; "
            f"connect('auto', 'default'); (name,) = our_actors('{prefix}'); kill_actor(name)"
        )
        self.hosts[0].run(f'{self._env} {PYTHON} -c "{kill}"')

    def ours(self, host: Host) -> list[str]:
        """The pids, their parents' and the command lines of our processes and actors there."""
        lines = host.run("ps -eo pid,ppid,args --no-headers").splitlines()
        marks = ("twolane.deploy", "ray::AgentActor", "ray::ControllerActor", "ray::SeatActor")
        return [line for line in lines if any(mark in line for mark in marks)]


def wait_until(
    holds: Callable[[], bool],
    within_s: float = WITHIN_S,
    every_s: float = 0.2,
    *,
    shows: Callable[[], object] = str,
) -> None:
    """Raises AssertionError, with what `shows` returns then."""
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s, f"not within {within_s:g} s: {shows()}"
        time.sleep(every_s)


def command_of(pid: int) -> bytes:
    """Its arguments, each with a zero behind it; empty if it has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _pid_inside(pid: int) -> int:
    """What the process is called on its host; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(status.partition("NSpid:")[2].split("\n")[0].split()[-1])


def _program(pid: int) -> str:
    return command_of(pid).partition(b"\0")[0].decode().rstrip()


def _is_open(ip: str, port: int) -> bool:
    try:
        socket.create_connection((ip, port), timeout=1).close()
    except OSError:
        return False
    return True
