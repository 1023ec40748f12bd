"""Events of a cluster, shown to people by `twolane.deploy.cli.progress` and to programs as one line
of JSON each."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum


class Kind(StrEnum):
    STARTING = "starting"  # a process is being started
    LOADING = "loading"  # it reads its model: text says how far it is
    STARTED = "started"  # it serves: epoch, pid, its doors; text: device and dtype
    READY = "ready"  # the cluster answers: endpoint, http, admin
    DIED = "died"  # a process is proven dead: text says how
    RESTARTING = "restarting"  # text says when
    FENCED = "fenced"  # killed: text says why
    LOST = "lost"  # a host is silent, and nothing proves that its processes have ended: text
    FOUND = "found"  # it answers again
    OPERATOR = "operator"  # somebody has asked for something: text says who and what
    FAILED = "failed"  # the cluster cannot start: text says why
    STOPPING = "stopping"
    STOPPED = "stopped"  # after a start only; the end of the stream proves it in any case


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event. `name` is that of a process or host, or empty for the whole cluster."""

    kind: Kind
    name: str = ""
    epoch: int = 0
    pid: int = 0
    endpoint: str = ""
    http: str = ""  # host:port of a router's HTTP door
    admin: str = ""  # unix:PATH of its door for operators
    metrics: str = ""  # host:port of its Prometheus page
    text: str = ""

    def to_json(self) -> str:
        return json.dumps({key: value for key, value in asdict(self).items() if value})
