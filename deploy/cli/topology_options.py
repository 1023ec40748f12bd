"""Turns a command's options into a topology. Without a file they define one; with a file they
override its cluster-wide values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from pydantic import BaseModel

from twolane.deploy.spec.parse_topology import TopologyError, parse_topology, written
from twolane.deploy.spec.topology import (
    OPTIONS,
    RayOptions,
    RouterOptions,
    ScalerOptions,
    TimingOptions,
    Topology,
    WorkerOptions,
)
from twolane.deploy.spec.topology_file import find_topology, read_topology

_COUNTS = ("prefill", "decode", "colocated")
_PARTS: dict[str, type[BaseModel]] = {
    "ray": RayOptions,
    "scaler": ScalerOptions,
    "router": RouterOptions,
    "timing": TimingOptions,
    "workers": WorkerOptions,
}
_OF_THE_SCALER = ScalerOptions.model_fields.keys() - {"autoscale", "flips"}


def read_options(options: Mapping[str, Any], *, role: str | None = None) -> Topology:
    """`topology_of` the options and the file that `--topology` names. Also raises `StartError` if
    the file is not found or not valid."""
    file = options.get("topology")
    base = None if file is None else read_topology(find_topology(file), is_whole=role is None)
    return topology_of(options, base, role=role)


def topology_of(
    options: Mapping[str, Any], base: Topology | None = None, *, role: str | None = None
) -> Topology:
    """The topology for `options` (those that the user set, by name) and `base` (the file's). With a
    `role`, that of a single worker.

    Raises `click.UsageError` for contradictions, and for options about pools beside a file: only
    the file can set these.
    """
    value: dict[str, Any]
    if base is None:
        value = {"pools": [{"role": role}] if role else _pools(options)}
    else:
        _refuse_pools_own(options, base)
        value = base.model_dump(exclude_none=True)
    for name, said in options.items():
        if name in Topology.model_fields:
            value[name] = said
        for part, model in _PARTS.items():
            if name in model.model_fields:
                value[part] = {**value.get(part, {}), name: said}

    def as_written(name: str) -> str:
        key = name.rpartition(".")[2]
        return OPTIONS[key].flag if base is None or key in options else name

    try:
        topology = parse_topology(value, is_whole=role is None)
    except TopologyError as error:
        raise click.UsageError(written(str(error), as_written)) from error
    if not topology.scaler.autoscale:
        for name in sorted(_OF_THE_SCALER & options.keys()):
            raise click.UsageError(f"{OPTIONS[name].flag} does nothing without --autoscale")
    return topology


def _pools(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The pools for the numbers of workers, which are 1 by default if no worker is colocated."""
    colocated = options.get("colocated", 0)
    counts = {name: options.get(name, 0 if colocated else 1) for name in ("prefill", "decode")}
    counts["both"] = colocated
    return [{"role": role, "workers": n} for role, n in counts.items() if n]


def _refuse_pools_own(options: Mapping[str, Any], base: Topology) -> None:
    for name in (*_COUNTS, "role"):
        if name in options:
            raise click.UsageError(
                f"the topology says what workers there are: leave --{name} out, or edit the file"
            )
    for pool in base.pools:
        for name, said in options.items():
            own = getattr(pool, name, None) if name in WorkerOptions.model_fields else None
            if own is not None and own != said:
                raise click.UsageError(
                    f"pool {pool.title} of the topology has a {name} of its own, which is {own}: "
                    f"leave {_flag(name, said)} out, or edit the file"
                )


def _flag(name: str, said: Any) -> str:
    flag = OPTIONS[name].flag
    return flag if said is not False else f"--no-{flag.removeprefix('--')}"
