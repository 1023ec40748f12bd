"""The options of hosts that come and go with the workers, in a topology."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from twolane.deploy.spec.cluster_spec import HostSetSpec, Resource
from twolane.rpc.listen import MAX_PORT

KUBERNETES = "kubernetes"  # a launcher
Place = tuple[str | int, ...]


class HostSetOptions(BaseModel):
    """Alike hosts: see `twolane.deploy.spec.cluster_spec.HostSetSpec`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, Field(pattern="^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=52)]
    pools: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    most: Annotated[int, Field(ge=1, le=1000)]
    gpus: Annotated[int, Field(ge=0)] = 0
    seats: Annotated[int, Field(ge=1)] = 1
    resources: dict[str, Annotated[float, Field(gt=0, strict=False)]] = {}

    def spec(self, *, is_pods: bool) -> HostSetSpec:
        return HostSetSpec(
            name=self.name,
            pools=self.pools,
            most=self.most,
            gpus=self.gpus,
            seats=self.seats,
            resources=tuple(Resource(name, float(n)) for name, n in self.resources.items()),
            is_pods=is_pods,
        )


class KubernetesOptions(BaseModel):
    """`namespace`: where the StatefulSets are; None: the controller's own. `pod_selector`: the
    labels of their pods; empty: all pods there are looked at. `agent_port`: of each pod's agent.
    `keda_port`: KEDA scales the StatefulSets, and asks there how many pods to have; None: the
    controller scales them. `lease`: a `coordination.k8s.io` Lease; of several controllers with the
    same one, the one that holds it acts, and the others wait."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    namespace: str | None = None
    pod_selector: str = ""
    agent_port: Annotated[int, Field(ge=1, le=MAX_PORT)] = 7210
    lease: Annotated[str, Field(min_length=1)] = "twolane-controller"
    keda_host: str = "0.0.0.0"
    keda_port: Annotated[int, Field(ge=0, le=MAX_PORT)] | None = None


def wrong_sets(
    launcher: str, ray_address: str, sets: Sequence[HostSetOptions], pools: Mapping[str, int]
) -> Iterator[tuple[Place, str]]:
    """Errors of host sets, each with its place. `pools`: their workers, by name."""
    is_on_ray = launcher == "ray" and ray_address != "local"
    if sets and not (is_on_ray or launcher == KUBERNETES):
        yield (
            ("host_sets",),
            f"launcher is {launcher}, whose hosts do not come and go: make it kubernetes, or ray "
            "with an address",
        )
    if launcher == KUBERNETES and not sets:
        yield ("launcher",), "launcher is kubernetes: name the StatefulSets of workers (host_sets)"
    seen: dict[str, int] = {}
    for i, its in enumerate(sets):
        if (first := seen.setdefault(its.name, i)) != i:
            yield ("host_sets", i, "name"), f"host_sets[{first}] has the name {its.name} already"
        for name in its.pools:
            if name not in pools:
                known = ", ".join(pools)
                yield ("host_sets", i, "pools"), f"there is no pool {name}; there are {known}"
        if is_on_ray and not its.resources and not its.gpus:
            yield (
                ("host_sets", i, "resources"),
                f"by which resources does Ray know a node of {its.name}? name some, or gpus",
            )
    named = {name for its in sets for name in its.pools}
    for name in pools:
        if sets and name not in named:
            yield ("host_sets",), f"no host set takes workers of pool {name}"
