"""What an agent is started with."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

from twolane.security.credentials import Credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """`host_name` is unique in the cluster. In `state_dir`, which outlives the agent,
    is what re-adopting takes; in `log_dir` the output of what it starts.

    `gpus` are those that it may give away, as CUDA_VISIBLE_DEVICES names them.
    """

    state_dir: Path
    log_dir: Path
    credentials: Credentials
    host_name: str = field(default_factory=socket.gethostname)
    bind_host: str = "127.0.0.1"
    port: int = 0
    gpus: tuple[str, ...] = ()
    heartbeat_s: float = 1.0
