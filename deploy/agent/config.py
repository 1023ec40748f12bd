"""The configuration of an agent."""

from __future__ import annotations

import os
import socket
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from twolane.config import SOCKET_NAME
from twolane.deploy.errors import StartError
from twolane.deploy.spec.specs import RouterSpec
from twolane.security.credentials import Credentials

START_S = 1800.0  # large models load for minutes, and kernels are compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """`host_name` is unique in the cluster. `state_dir` outlives the agent and has all it needs to
    adopt running processes; `log_dir` has the output of the processes.

    `host_uid`, as the UID of a pod, stands for the boot id where hosts of the same name follow each
    other within a boot of the machine: what ran on an earlier one has ended.

    `gpus` are those that it may assign to workers, as in CUDA_VISIBLE_DEVICES. A process that does
    not serve within `start_s` is killed, and its start has failed.
    """

    state_dir: Path
    log_dir: Path
    credentials: Credentials
    host_name: str = field(default_factory=socket.gethostname)
    host_uid: str = ""
    bind_host: str = "127.0.0.1"
    port: int = 0
    gpus: tuple[str, ...] = ()
    heartbeat_s: float = 1.0
    start_s: float = START_S

    def admin_socket_of(self, router: RouterSpec) -> Path:
        """Where clients on this host look for the operators' socket; makes its folder. Raises
        `StartError`."""
        folder = Path(tempfile.gettempdir()) / f"twolane-agent-{self.host_name}-{os.geteuid()}"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                raise StartError(f"{folder} belongs to another user")
        except OSError as error:
            raise StartError(f"{folder}: {error.strerror}") from error
        return folder / (f"{SOCKET_NAME}.{router.name}" if router.shares_ports else SOCKET_NAME)
