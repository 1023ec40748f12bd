"""The actions that the law asks an executor for, each with its reason. Each is idempotent: an
action that is already under way is not begun again."""

from __future__ import annotations

from dataclasses import dataclass

from twolane.deploy.controller.observation import Need, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The inputs of one decision. `have` counts the pool's workers that serve or will; `target`
    is what the budget allows of the need. `detail`: what is particular to this action."""

    role: Role
    need: Need
    have: int
    target: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """Start one worker with these roles."""

    roles: frozenset[Role]
    gpus: int
    why: Why


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a start that takes too long, and free its GPUs."""

    worker_id: str
    why: Why


@dataclass(frozen=True, slots=True)
class Undrain:
    """Let a draining worker serve again."""

    worker_id: str
    why: Why


@dataclass(frozen=True, slots=True)
class Flip:
    """Change a worker's roles to these: add the new one first, then drain the old one."""

    worker_id: str
    roles: frozenset[Role]
    why: Why


@dataclass(frozen=True, slots=True)
class Drain:
    """Drain a worker; it is deleted once it has its ticket."""

    worker_id: str
    why: Why


@dataclass(frozen=True, slots=True)
class Delete:
    """Stop a drained worker on its ticket."""

    worker_id: str
    why: Why


Action = Start | Cancel | Undrain | Flip | Drain | Delete
