"""The options of a host in a topology."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from twolane.deploy.spec.cluster_spec import HostSpec
from twolane.rpc.listen import bare


class HostOptions(BaseModel):
    """A host that runs our agent: see `twolane.deploy.spec.cluster_spec.HostSpec`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9.-]*$", max_length=253)]
    agent: Annotated[str, Field(pattern=r"^\S+:\d{1,5}$")]
    bind_host: str | None = None
    advertise_host: str | None = None
    gpus: Annotated[tuple[str, ...], Field(strict=False)] | None = None
    seats: Annotated[int, Field(ge=0)] | None = None
    fence_command: str = ""
    routers: Annotated[int, Field(ge=0)] | None = None

    def spec(self) -> HostSpec:
        """The host's spec. Its processes use the agent's address unless the options set another."""
        address = bare(self.agent.rpartition(":")[0])
        bind_host = self.bind_host or address
        return HostSpec(
            name=self.name,
            agent=self.agent,
            bind_host=bind_host,
            advertise_host=self.advertise_host or (address if self.bind_host else ""),
            gpus=self.gpus,
            seats=self.seats,
            fence_command=self.fence_command,
            routers=self.routers,
        )


def wrong_hosts(
    launcher: str, ray_address: str, hosts: Sequence[HostOptions]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Errors of hosts, each with its place: hosts without a launcher that uses them, workers on
    hosts beside a Ray, and duplicate hosts."""
    is_on_ray = launcher == "ray" and ray_address != "local"
    if hosts and not (is_on_ray or launcher in ("agents", "kubernetes")):
        yield ("hosts",), f"launcher is {launcher}, which reaches no hosts: make it agents"
    for i, host in enumerate(hosts):
        if is_on_ray and (host.seats, host.gpus) != (0, ()):
            text = "beside a Ray, hosts are for routers: seats must be 0 and gpus []"
            yield ("hosts", i), text
    for field in ("name", "agent"):
        seen: dict[str, int] = {}
        for i, host in enumerate(hosts):
            said = getattr(host, field)
            first = seen.setdefault(said, i)
            if first != i:
                yield ("hosts", i, field), f"hosts[{first}] has the {field} {said} already"
