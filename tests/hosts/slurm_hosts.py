"""A real Slurm on fake hosts: a controller on the first, a node on each."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.hosts.fake_hosts import Host

TOOLS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "munged")
_CONF = """
ClusterName=test
SlurmctldHost={first.name}({first.ip})
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
KillWait=5
SlurmdTimeout=10
SlurmctldTimeout=10
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """Use as a context manager. `folder` is on a file system that the hosts share; jobs may use
    it, too."""

    def __init__(self, hosts: Sequence[Host], log_dir: Path) -> None:
        self.hosts = [*hosts]
        self.folder = Path(tempfile.mkdtemp(prefix="twolane-slurm-", dir="/var/tmp"))
        self._log_dir = log_dir

    def __enter__(self) -> Slurm:
        (self.folder / "state").mkdir()
        nodes = [
            f"NodeName={host.name} NodeAddr={host.ip} CPUs={os.cpu_count()} State=UNKNOWN"
            for host in self.hosts
        ]
        first = self.hosts[0]
        (self.folder / "slurm.conf").write_text(
            _CONF.format(first=first, folder=self.folder, user="root", nodes="\n".join(nodes))
        )
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        munged = " ".join(
            f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "log", "seed")
        )
        self._bg(first, f"munged --foreground --force --socket={self.folder}/munge.sock {munged}")
        self._bg(first, "slurmctld -D")
        for host in self.hosts:
            self.start_node(host)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)  # its processes end with their hosts

    def start_node(self, host: Host) -> None:
        self._bg(host, f"slurmd -D -N {host.name}")

    def run(self, command: str) -> str:
        """What a command prints on the first host."""
        return self.hosts[0].run(f"cd {self.folder} && {self._env()} {command}").strip()

    def _bg(self, host: Host, command: str) -> None:
        log = self._log_dir / f"{command.split()[0]}-{host.name}.log"
        host.bg(f"{self._env()} exec {command}", log)

    def _env(self) -> str:
        return f"export SLURM_CONF={self.folder}/slurm.conf;"
