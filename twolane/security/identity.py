"""Identities: the roles and names of callers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

_TRUST = "spiffe://twolane/"
_PART = re.compile(r"[A-Za-z0-9._-]{1,100}")  # allowed in SPIFFE ids and in file names


class Role(StrEnum):
    """What a caller is. A certificate names one role; each method lists the roles that may call it.

    `LOCAL` is a process of this cluster on this machine that presented the cluster's secret. It may
    call what routers, workers, agents and controllers may call.
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

    `tenant` is set for clients only. It is "" for clients that presented neither a key nor a
    certificate, which is allowed on loopback only.
    """

    role: Role
    name: str = ""
    tenant: str = ""

    def __str__(self) -> str:
        """The form in logs and audit events: `worker/decode-0`, `client/acme/key-1`."""
        return "/".join(part for part in (self.role.value, self.tenant, self.name) if part)

    @property
    def uri(self) -> str:
        """The form in a certificate: `spiffe://twolane/worker/decode-0`."""
        return _TRUST + str(self)


def parse_identity(text: str) -> Identity:
    """Parse `worker/decode-0` or `client/acme/alice`, with or without `spiffe://twolane/`.

    Raises ValueError for anything else. `LOCAL` cannot be the role of a certificate.
    """
    role, *names = text.removeprefix(_TRUST).split("/")
    roles = [each.value for each in Role if each is not Role.LOCAL]
    if role not in roles:
        raise ValueError(f"{role!r} is not a role; the roles are {', '.join(roles)}")
    wanted = ["TENANT", "NAME"] if role == Role.CLIENT else ["NAME"]
    if len(names) != len(wanted) or not all(map(_PART.fullmatch, names)):
        raise ValueError(
            f"{text!r} is not an identity; it must be {'/'.join([role, *wanted])}, with letters, "
            "digits and ._-"
        )
    return Identity(Role(role), names[-1], names[0] if len(names) > 1 else "")


ANONYMOUS = Identity(Role.CLIENT)  # the caller at a clients' door that requires no credentials
