"""The options of `twolane up` as a topology: alone they make one, beside a file they change it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from pydantic import BaseModel

from deploy.topology import (
    RouterOptions,
    TimingOptions,
    Topology,
    TopologyError,
    WorkerOptions,
    parse_topology,
)

_COUNTS = ("prefill", "decode", "colocated")
_PARTS: dict[str, type[BaseModel]] = {
    "router": RouterOptions,
    "timing": TimingOptions,
    "workers": WorkerOptions,
}


def topology_of(options: Mapping[str, Any], base: Topology | None = None) -> Topology:
    """`options` are those that were given, by name; `base` is what a file says.

    Raises `click.UsageError` for what contradicts itself, and for an option that the file would not
    let through: pools are the file's alone.
    """
    value: dict[str, Any]
    if base is None:
        value = {"pools": _pools(options)}
    else:
        _refuse_pools_own(options, base)
        value = base.model_dump(exclude_none=True)
    for name, said in options.items():
        if name in Topology.model_fields:
            value[name] = said
        for part, model in _PARTS.items():
            if name in model.model_fields:
                value[part] = {**value.get(part, {}), name: said}
    try:
        return parse_topology(value)
    except TopologyError as error:
        raise click.UsageError(str(error)) from error


def _pools(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Where no worker is colocated, a count that is not given is 1."""
    colocated = options.get("colocated", 0)
    counts = {name: options.get(name, 0 if colocated else 1) for name in ("prefill", "decode")}
    counts["colocated"] = colocated
    if not counts["colocated"] and not (counts["prefill"] and counts["decode"]):
        raise click.UsageError(
            f"{counts['prefill']} prefill and {counts['decode']} decode workers can answer "
            "nothing; take at least one of each, or --colocated 1"
        )
    roles = {"prefill": "prefill", "decode": "decode", "colocated": "both"}
    return [{"role": roles[name], "workers": n} for name, n in counts.items() if n]


def _refuse_pools_own(options: Mapping[str, Any], base: Topology) -> None:
    for name in _COUNTS:
        if name in options:
            raise click.UsageError(
                f"the topology says what workers there are: leave {_flag(name)} out, or edit the "
                "file"
            )
    for pool in base.pools:
        for name, said in options.items():
            own = getattr(pool, name, None) if name in WorkerOptions.model_fields else None
            if own is not None and own != said:
                raise click.UsageError(
                    f"pool {pool.title} of the topology has a {name} of its own, which is {own}: "
                    f"leave {_flag(name, said)} out, or edit the file"
                )


def _flag(name: str, said: Any = None) -> str:
    name = {"transports": "transport"}.get(name, name)
    return ("--no-" if name == "checksums" and not said else "--") + name.replace("_", "-")
