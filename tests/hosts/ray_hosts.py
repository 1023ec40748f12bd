"""A real Ray over fake hosts, and what a user does there."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hosts.fake_hosts import Host, Network

PYTHON = f"{sys.executable} -P"
_RAY = f"{PYTHON} -m ray.scripts.scripts"
_PORT = 6379
_ENV = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
    "RAY_enable_metrics_collection": "0",
    "TRITON_INTERPRET": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
_SMALL = "--num-cpus 1 --object-store-memory 80000000 --disable-usage-stats --block"


class RayHosts:
    """The head on the first host, a raylet on each other one."""

    def __init__(self, network: Network, log_dir: Path) -> None:
        self.network = network
        self.hosts = [network.host("a"), network.host("b")]
        self.address = f"{self.hosts[0].ip}:{_PORT}"
        self._log_dir = log_dir
        values = " ".join(f"{name}={value}" for name, value in _ENV.items())
        self._env = f"env -u TWOLANE_SECRET_FILE {values}"

    def start(self) -> None:
        self.start_on(self.hosts[0])
        wait_until(lambda: _is_open(self.hosts[0].ip, _PORT), 60)
        for host in self.hosts[1:]:
            self.start_on(host)
        wait_until(lambda: self.n_alive() == len(self.hosts), 60)

    def start_on(self, host: Host) -> None:
        where = f"--address {self.address}"
        if host is self.hosts[0]:
            where = f"--head --port {_PORT} --include-dashboard=false"
        host.bg(
            f"{self._env} {_RAY} start {where} --node-ip-address {host.ip} {_SMALL}",
            self._log_dir / f"ray-{host.name}.log",
        )

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

    def twolane(self, host: Host, arguments: str, *, timeout_s: float = 120) -> str:
        """What a command of ours prints there."""
        command = f"{self._env} {PYTHON} -m twolane.cli {arguments}"
        return host.run(command, timeout_s=timeout_s)

    def up(self, host: Host, arguments: str) -> list[dict[str, Any]]:
        """Start a cluster, or attach to it, from there. Returns its events."""
        command = f"up --json --launcher ray --ray-address {self.address} {arguments}"
        return [json.loads(line) for line in self.twolane(host, command).splitlines()]

    def down(self, host: Host) -> None:
        assert self.twolane(host, f"down --ray-address {self.address}") == "stopped\n"

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

    def term(self, host: Host) -> int:
        """Of the controller whose commands its agent takes."""
        (path,) = (host.root / "tmp/home/.twolane").glob("*/*/term")
        return int(json.loads(path.read_text())["number"])

    def workers(self, host: Host) -> list[int]:
        """The pids of workers there that have not ended."""
        return [pid for pid in host.pids() if b"twolane.deploy\0worker" in command_of(pid)]

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


def wait_until(holds: Callable[[], bool], within_s: float, every_s: float = 0.2) -> None:
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s, f"not within {within_s:g} s"
        time.sleep(every_s)


def command_of(pid: int) -> bytes:
    """Its arguments, each with a zero behind it; empty if it has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _program(pid: int) -> str:
    return command_of(pid).partition(b"\0")[0].decode().rstrip()


def _is_open(ip: str, port: int) -> bool:
    try:
        socket.create_connection((ip, port), timeout=1).close()
    except OSError:
        return False
    return True
