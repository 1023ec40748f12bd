"""The connection to somebody's Ray, and the names of our actors there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twolane.deploy.errors import StartError

CONTROLLER = "controller"
AGENT, SEAT = "agent-", "seat-"  # names of actors begin so


@dataclass(frozen=True, slots=True)
class Node:
    """A node of Ray that is alive, as Ray says."""

    node_id: str
    host_name: str
    ip: str
    gpus: int


def connect(address: str, cluster: str) -> None:
    """Use that Ray from here on, from one of its nodes: `auto` is the one that runs here, or that
    RAY_ADDRESS names. Tokens are those of RAY_AUTH_MODE and RAY_AUTH_TOKEN. Raises `StartError`."""
    import ray

    try:
        ray.init(
            address=address,
            namespace=f"twolane-{cluster}",
            log_to_driver=False,
            configure_logging=False,
            logging_level="ERROR",
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise StartError(f"no Ray at {address} (--ray-address): {error}") from error


def nodes() -> list[Node]:
    """Those that are alive, the one that this process is on first. Raises as Ray does while its
    control store is away."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    found = [
        Node(
            node_id=each["NodeID"],
            host_name=each["NodeManagerHostname"],
            ip=each["NodeManagerAddress"],
            gpus=int(each["Resources"].get("GPU", 0)),
        )
        for each in ray.nodes()
        if each["Alive"]
    ]
    return sorted(found, key=lambda node: (node.node_id != here, node.host_name, node.ip))


def names_of(found: Sequence[Node]) -> list[str]:
    """A name for each: its host's, with the address where two hosts have one name."""
    hosts = [node.host_name for node in found]
    return [
        node.host_name if hosts.count(node.host_name) == 1 else f"{node.host_name}-{node.ip}"
        for node in found
    ]


def our_actor(name: str) -> Any:
    """None if there is none."""
    import ray

    try:
        return ray.get_actor(name)
    except ValueError:
        return None


def our_actors(prefix: str) -> list[str]:
    """The names of ours that begin so."""
    from ray.util import list_named_actors

    return [name for name in list_named_actors() if name.startswith(prefix)]


def actor_on(node: Node, kind: type, *, name: str, **options: Any) -> Any:
    """The class as an actor of ours on exactly that node, for as long as nobody kills it. It asks
    for no processor: of those Ray only needs to know that they are not its business."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return ray.remote(kind).options(
        name=name,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
        **options,
    )


def kill_actor(name: str) -> None:
    """And never start it again. One that is gone already is left alone."""
    import ray

    with contextlib.suppress(ValueError):
        ray.kill(ray.get_actor(name), no_restart=True)


def outcomes(calls: Mapping[Any, str], within_s: float) -> Iterator[tuple[str, Exception | None]]:
    """Of calls of actors, each with a name: the names as they end, with what they raised; those
    that do not end in time are left out."""
    import ray
    from ray.exceptions import RayError

    left, end = list(calls), time.monotonic() + within_s
    while left:
        done, left = ray.wait(left, num_returns=1, timeout=max(end - time.monotonic(), 0.0))
        if not done:
            return
        try:
            ray.get(done)
        except RayError as error:
            yield calls[done[0]], error
        else:
            yield calls[done[0]], None


def was_made_again() -> bool:
    """In an actor: Ray has made it before, and it died."""
    import ray

    return bool(ray.get_runtime_context().was_current_actor_reconstructed)
