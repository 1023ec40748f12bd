"""A host of a cluster, as a frozen value: see `twolane.deploy.spec.specs`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """A host with an agent of ours, at host:port. Its processes listen at `bind_host` and are
    dialled at `advertise_host`.

    `gpus` are those to use, as CUDA_VISIBLE_DEVICES names them there; None: all that the agent
    offers. `seats` are the workers that it takes where they compute on the CPU; None: its share.
    `fence_command` switches it off: run by a shell on the controller's machine, 0 means that it is.
    """

    name: str
    agent: str
    bind_host: str
    advertise_host: str
    gpus: tuple[str, ...] | None = None
    seats: int | None = None
    fence_command: str = ""
