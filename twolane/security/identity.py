"""Identities: who is at the other end of a call."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a caller is. A certificate names one role; each method lists the roles that may call it.

    `LOCAL` is a process of this cluster on this machine that showed the cluster's secret: it may do
    what routers, workers, agents and controllers may.
    """

    ROUTER = "router"
    WORKER = "worker"
    AGENT = "agent"
    CONTROLLER = "controller"
    OPERATOR = "operator"
    VIEWER = "viewer"
    CLIENT = "client"
    LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller: its role and its name (a worker's id, a node's name, a person, an API key's id).

    `tenant` is set for clients only; "" is the tenant of clients that showed neither a key nor a
    certificate, which is allowed on loopback only.
    """

    role: Role
    name: str = ""
    tenant: str = ""

    def __str__(self) -> str:
        """For logs and audit events: `worker/decode-0`, `client/acme/key-1`."""
        return "/".join(part for part in (self.role.value, self.tenant, self.name) if part)
