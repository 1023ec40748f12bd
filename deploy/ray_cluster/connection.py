"""The connection to an existing Ray, and the names of our actors there."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twolane.deploy.errors import StartError

log = logging.getLogger(__name__)

CONTROLLER = "controller"
AGENT, SEAT = "agent-", "seat-"  # prefixes of actors' names


@dataclass(frozen=True, slots=True)
class Node:
    """A Ray node that is alive according to Ray."""

    node_id: str
    host_name: str
    ip: str
    gpus: int
    resources: Mapping[str, float] = field(default_factory=dict, compare=False)


def connect(address: str, cluster: str) -> None:
    """Connect this process, which must be on one of its nodes, to a Ray. `auto` is the Ray on this
    machine, or the one that RAY_ADDRESS names. Tokens come from RAY_AUTH_MODE and RAY_AUTH_TOKEN.
    Raises `StartError`."""
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


@contextlib.contextmanager
def bearing_with_ray(what: str) -> Iterator[None]:
    """Log what Ray raises while its control store is down; the caller tries again. Ray raises
    RuntimeError itself: errors of classes below it are ours, and go on."""
    from ray.exceptions import RayError

    try:
        yield
    except (RayError, ConnectionError, TimeoutError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and type(error) is not RuntimeError:
            raise
        log.warning("%s: Ray does not answer: %r", what, error)


def nodes() -> list[Node]:
    """The live nodes, with this process's node first. Raises Ray's errors while its control store
    is down."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    found = [
        Node(
            node_id=each["NodeID"],
            host_name=each["NodeManagerHostname"],
            ip=each["NodeManagerAddress"],
            gpus=int(each["Resources"].get("GPU", 0)),
            resources=each["Resources"],
        )
        for each in ray.nodes()
        if each["Alive"]
    ]
    return sorted(found, key=lambda node: (node.node_id != here, node.host_name, node.ip))


def names_of(found: Sequence[Node]) -> list[str]:
    """A name for each node: its host's, with the address if two hosts have the same name."""
    hosts = [node.host_name for node in found]
    return [
        node.host_name if hosts.count(node.host_name) == 1 else f"{node.host_name}-{node.ip}"
        for node in found
    ]


def our_actor(name: str) -> Any:
    """Our actor of that name; None if there is none."""
    import ray

    try:
        return ray.get_actor(name)
    except ValueError:
        return None


def our_actors(prefix: str) -> list[str]:
    """The names of our actors that begin with `prefix`."""
    from ray.util import list_named_actors

    return [name for name in list_named_actors() if name.startswith(prefix)]


def actor_on(node: Node, kind: type, *, name: str, **options: Any) -> Any:
    """Our actor of this class on exactly that node; it lives until it is killed. It requests no
    CPUs, because Ray does not manage ours."""
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
    """Kill an actor for good. Does nothing if it does not exist."""
    import ray

    with contextlib.suppress(ValueError):
        ray.kill(ray.get_actor(name), no_restart=True)


def outcomes(calls: Mapping[Any, str], within_s: float) -> Iterator[tuple[str, Exception | None]]:
    """Wait for calls of actors, each with a name. Yields each name as its call ends, with the error
    that it raised; calls that do not end in time are left out."""
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
    """Whether Ray has restarted this actor after it died. Call it in an actor."""
    import ray

    return bool(ray.get_runtime_context().was_current_actor_reconstructed)
