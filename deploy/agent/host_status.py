"""A host, as its controller tells routers of it."""

from __future__ import annotations

from collections.abc import Mapping

from twolane.deploy.agent.host_link import HostLink, HostState
from twolane.v1 import cluster_pb2


def status_of(link: HostLink, seats: Mapping[str, tuple[str, int]]) -> cluster_pb2.HostStatus:
    """`seats`: the host of each worker, and its number of GPUs."""
    gpus = {name: n for name, (host, n) in seats.items() if host == link.host.name}
    note = ""
    if link.state is not HostState.UP:
        note = "fence command" if link.host.fence_command else "no fence command"
    return cluster_pb2.HostStatus(
        name=link.host.name,
        state=link.state.value,
        for_s=link.for_s,
        workers=sorted(gpus),
        gpus=sum(gpus.values()),
        note=note,
        lost=sorted({name for name, _, _ in link.lost()}),
        insecure_listeners=["--listen"] * link.is_insecure,
    )
