"""Fake hosts on one machine, and faults of the network between them.

    with Network() as network:
        a, b = network.host("a"), network.host("b")
        a.run("ping -c 1 10.77.0.12")
        b.bg("python -m http.server", log)
        network.cut(a, b); network.heal()

A host has its own network, processes, mounts, name and boot id; /tmp and /dev/shm are its own. Its
files are seen from here below `host.root`. The tests themselves are on the bridge, at 10.77.0.1:
faults are between hosts, the tests reach every host all the same.
"""

from __future__ import annotations

import itertools
import os
import select
import shlex
import signal
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

NET = "10.77.0"
HERE = f"{NET}.1"

_VETHS = itertools.count()

# Process 1 of a host reaps whom others leave behind, and does nothing else.
_INIT = """
import os, signal
signal.signal(signal.SIGCHLD, lambda *_: None)
print("ready", flush=True)
while True:
    try:
        os.wait()
    except ChildProcessError:
        signal.pause()
"""
# The checkout stays where it is, also where that is below /tmp.
_MOUNTS = """
mount -t tmpfs kept /mnt && mkdir /mnt/checkout && mount --bind {checkout} /mnt/checkout &&
mount -t tmpfs tmp /tmp && mount -t tmpfs shm /dev/shm && mkdir -p {checkout} /tmp/home &&
mount --move /mnt/checkout {checkout} && umount /mnt &&
echo {boot_id} > /tmp/boot_id && mount --bind /tmp/boot_id /proc/sys/kernel/random/boot_id &&
hostname {name} && exec "$@"
"""


def sh(command: str) -> str:
    """What a shell command prints. Raises CalledProcessError with what it says of its failure."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(
            done.returncode, f"{command}: {done.stderr}", done.stdout, done.stderr
        )
    return done.stdout


class Host:
    """Made by `Network.host`."""

    def __init__(self, name: str, number: int, python: str) -> None:
        self.name = name
        self.ip = f"{NET}.{10 + number}"
        checkout = shlex.quote(str(Path.cwd()))
        mounts = _MOUNTS.format(name=name, boot_id=uuid.uuid4(), checkout=checkout)
        self._started: list[subprocess.Popen[bytes]] = []
        self._unshare = subprocess.Popen(
            ["unshare", "--net", "--mount", "--pid", "--ipc", "--uts", "--fork", "--mount-proc",
             "--kill-child", "sh", "-c", mounts, "sh", python, "-S", "-c", _INIT],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self._unshare.stdout is not None
        assert self._unshare.stderr is not None
        if self._unshare.stdout.readline() != b"ready\n":
            raise RuntimeError(f"host {name} did not come up: {self._unshare.stderr.read()!r}")
        pid = self._unshare.pid
        self.init = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
        veth = f"veth{next(_VETHS)}"  # the kernel removes one a while after its host has ended
        sh(
            f"ip link add {veth} type veth peer name eth0 netns {self.init} && "
            f"ip link set {veth} master br0 up"
        )
        self.run(f"ip link set lo up && ip addr add {self.ip}/24 dev eth0 && ip link set eth0 up")
        self.run(
            "nft 'add table inet faults; "
            "add chain inet faults input { type filter hook input priority 0; }'"
        )

    @property
    def root(self) -> Path:
        """Its file system, as seen from here."""
        return Path(f"/proc/{self.init}/root")

    def run(self, command: str, *, timeout_s: float = 180) -> str:
        """What a shell command prints there. Raises CalledProcessError, TimeoutExpired."""
        done = subprocess.run(
            self._inside(command), capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if done.returncode:
            raise subprocess.CalledProcessError(
                done.returncode,
                f"{self.name}: {command}: {done.stderr}{done.stdout}",
                done.stdout,
                done.stderr,
            )
        return done.stdout

    def bg(self, command: str, log: Path) -> subprocess.Popen[bytes]:
        """A shell command that runs until it ends, or the host does; what it prints goes to
        `log`."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                self._inside(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self._started.append(process)
        return process

    def pids(self) -> list[int]:
        """Of all its processes but process 1, as seen from here."""
        try:
            space = os.stat(f"/proc/{self.init}/ns/pid").st_ino
        except OSError:  # it was killed
            return []
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if int(entry.name) != self.init and entry.joinpath("ns/pid").stat().st_ino == space:
                    found.append(int(entry.name))
            except OSError:  # it has ended meanwhile
                continue
        return found

    def freeze(self) -> None:
        """No process of it runs any more, until `thaw`."""
        while running := [pid for pid in self.pids() if not _is_stopped(pid)]:
            for pid in running:
                _signal(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in (*self.pids(), *(process.pid for process in self._started)):
            _signal(pid, signal.SIGCONT)  # an nsenter stops with what it has started

    def kill(self) -> None:
        """All at once, as by a power cut. Returns when nothing of it runs. May be called twice."""
        if self._unshare.poll() is None:
            fd = os.pidfd_open(self.init)
            os.kill(self.init, signal.SIGKILL)
            is_over = False
            while not is_over:
                for process in self._started:  # an nsenter that stops would not reap
                    process.send_signal(signal.SIGCONT)
                is_over = bool(select.select([fd], [], [], 0.1)[0])
            os.close(fd)
            self._unshare.wait()
        for process in self._started:
            process.wait()
        for pipe in (self._unshare.stdout, self._unshare.stderr):
            assert pipe is not None
            pipe.close()

    def _inside(self, command: str) -> list[str]:
        here = f"cd {shlex.quote(str(Path.cwd()))} && export HOME=/tmp/home && {command}"
        return ["nsenter", "-t", str(self.init), "-n", "-m", "-p", "-i", "-u", "sh", "-c", here]


class Network:
    """A bridge and the hosts on it. Use as a context manager, in a network namespace of its own."""

    def __init__(self, python: str = "python3") -> None:
        self.hosts: list[Host] = []
        self._python = python

    def __enter__(self) -> Self:
        sh(
            "ip link set lo up && ip link add br0 type bridge && ip link set br0 up && "
            f"ip addr add {HERE}/24 dev br0"
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for host in self.hosts:
            host.kill()
        sh("ip link del br0")

    def host(self, name: str) -> Host:
        host = Host(name, len(self.hosts) + 1, self._python)
        self.hosts.append(host)
        return host

    def reboot(self, host: Host) -> Host:
        """Kill it; another boot of it comes back, with nothing on its disks."""
        host.kill()
        place = self.hosts.index(host)
        self.hosts[place] = Host(host.name, place + 1, self._python)
        return self.hosts[place]

    def cut(self, a: Host, b: Host) -> None:
        """Nothing gets from one to the other, silently."""
        self.cut_one_way(a, b)
        self.cut_one_way(b, a)

    def cut_one_way(self, sender: Host, receiver: Host) -> None:
        """Nothing that `sender` sends arrives at `receiver`."""
        receiver.run(f"nft add rule inet faults input ip saddr {sender.ip} drop")

    def loss(self, a: Host, b: Host, percent: int) -> None:
        """So many of the packets between them get lost, each way."""
        for sender, receiver in ((a, b), (b, a)):
            receiver.run(
                f"nft 'add rule inet faults input ip saddr {sender.ip} "
                f"numgen random mod 100 < {percent} drop'"
            )

    def heal(self, hosts: Sequence[Host] = ()) -> None:
        """No faults any more."""
        for host in hosts or self.hosts:
            host.run("nft flush chain inet faults input")


def _is_stopped(pid: int) -> bool:
    """Or over."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(") ")[2][0] in "TZX"


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
