"""Makes a topology of plain values, with all its errors at once: fields that do not exist or have a
wrong value, and fields that contradict each other. Each error names its field."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from twolane.deploy.spec.declared_options import settings
from twolane.deploy.spec.host_options import HostOptions, wrong_hosts
from twolane.deploy.spec.host_sets import HostSetOptions, KubernetesOptions, wrong_sets
from twolane.deploy.spec.page_rules import unprotected, unsummed
from twolane.deploy.spec.settings import (
    ClusterSettings,
    RouterSettings,
    ScalerSettings,
    TimingSpec,
    WorkerSettings,
)
from twolane.deploy.spec.topology import (
    NAMES,
    OPTIONS,
    Pool,
    RayOptions,
    RouterOptions,
    ScalerOptions,
    TimingOptions,
    Topology,
    WorkerOptions,
    given,
)
from twolane.engine.errors import EngineConfigError

Place = tuple[str | int, ...]  # of a field: ("pools", 0, "role")


@dataclass(frozen=True, slots=True)
class Problem:
    """One error: the field, and a text that is complete without it."""

    place: Place
    text: str


class TopologyError(ValueError):
    """All errors of a topology."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(problem.text for problem in problems))
        self.problems = problems


def parse_topology(value: object, *, is_whole: bool = True) -> Topology:
    """Parse a topology. Raises `TopologyError` with all its errors. With `is_whole` False, it need
    not have all the workers that it takes to serve."""
    try:
        topology = Topology.model_validate(value)
    except ValidationError as error:
        raise TopologyError([_problem(detail) for detail in error.errors()]) from None
    problems = list(_contradictions(topology, is_whole=is_whole))
    if problems:
        raise TopologyError(problems)
    return topology


def _contradictions(topology: Topology, *, is_whole: bool) -> Iterator[Problem]:
    """Errors that involve more than one field."""
    refused = list(_refused_options(topology))
    yield from refused
    n_of = dict.fromkeys(NAMES, 0)
    seen: dict[str, int] = {"router": -1}
    for i, pool in enumerate(topology.pools):
        n_of[pool.role] += pool.workers
        if pool.title in seen:
            whose = "the router" if seen[pool.title] < 0 else f"pools[{seen[pool.title]}]"
            text = f"{whose} is called {pool.title} already: give this pool another name"
            yield Problem(("pools", i, "name" if pool.name else "role"), text)
        seen[pool.title] = i
    if is_whole and not n_of["both"] and not (n_of["prefill"] and n_of["decode"]):
        yield Problem(
            ("pools",),
            f"{n_of['prefill']} prefill and {n_of['decode']} decode workers can answer nothing; "
            "take at least one of each, or one that does both (colocated)",
        )
    if not refused:
        yield from _unsummed(topology)
        yield from _unprotected(topology)
    yield from _misplaced_hosts(topology)
    if not refused and any(pool.role != "both" for pool in topology.pools):
        yield from _strangers(topology)
    parts: tuple[tuple[Place, BaseModel, type], ...] = (
        (("router",), topology.router, RouterSettings),
        (("timing",), topology.timing, TimingSpec),
        (("scaler",), topology.scaler, ScalerSettings),
        ((), topology, ClusterSettings),
    )
    for place, part, kind in parts:
        try:
            kind(**settings(kind, given(part)))
        except ValueError as error:
            yield Problem((*place, *_named(str(error))[-1:]), str(error))


def _refused_options(topology: Topology) -> Iterator[Problem]:
    """What engines and workers refuse; each error once, at the field that caused it."""
    found: dict[Place, str] = {}
    for i, pool in enumerate(topology.pools):
        try:
            topology.model_of(pool)
            WorkerSettings(**settings(WorkerSettings, given(topology.options_of(pool))))
        except (EngineConfigError, ValueError) as error:
            names = _named(str(error))
            own = [name for name in names if name in given(pool)]
            of_all = [name for name in names if name in given(topology.workers)]
            place: Place = ("pools", i, own[-1]) if own else ("workers", *of_all[-1:])
            found.setdefault(place, str(error))
    for place, text in found.items():
        yield Problem(place, text)


def _named(text: str) -> list[str]:
    """The options that an error message names, by key."""
    return [OPTIONS[word].key for word in re.findall(r"\w+", text) if word in OPTIONS]


def written(text: str, name: Callable[[str], str]) -> str:
    """An error message with its options as the user wrote them; `name` converts a key. A name of a
    single word may be an ordinary word: it counts only after the name of its section."""

    def replaced(found: re.Match[str]) -> str:
        part, word = found["part"] or "", found["word"]
        return name(part + OPTIONS[word].key) if word in OPTIONS else found[0]

    pattern = r"\b((?P<part>(router|timing|scaler|workers)\.)|(?=[a-z]+_))(?P<word>[a-z_]+)\b"
    return re.sub(pattern, replaced, text)


def _misplaced_hosts(topology: Topology) -> Iterator[Problem]:
    for place, text in (
        *wrong_hosts(topology.launcher, topology.ray.address, topology.hosts),
        *wrong_sets(
            topology.launcher,
            topology.ray.address,
            topology.host_sets,
            {pool.title: pool.workers for pool in topology.pools},
        ),
    ):
        yield Problem(place, text)


def _unsummed(topology: Topology) -> Iterator[Problem]:
    """Errors of missing checksums; each once, at the field that caused it."""
    found: dict[Place, str] = {}
    for i, pool in enumerate(topology.pools):
        its = WorkerSettings(**settings(WorkerSettings, given(topology.options_of(pool))))
        refusal = unsummed(its.transports, its.checksums)
        whose: Place = ("workers",) if pool.checksums is None else ("pools", i)
        if refusal:
            found.setdefault((*whose, "checksums"), refusal)
    for place, refusal in found.items():
        yield Problem(place, refusal)


def _unprotected(topology: Topology) -> Iterator[Problem]:
    """Errors of unprotected pages; each once, at the option that caused it."""
    found: dict[Place, str] = {}
    for i, pool in enumerate(topology.pools):
        its = WorkerSettings(**settings(WorkerSettings, given(topology.options_of(pool))))
        field, why = unprotected(
            its.transports,
            its.page_lane,
            topology.bind_host,
            trusted_fabric=its.trusted_fabric,
            insecure=topology.insecure,
        )
        if field:
            is_own = pool.transports is not None or getattr(pool, field) is not None
            whose: Place = ("pools", i) if is_own else ("workers",)
            found.setdefault((*whose, field), why)
    for place, why in found.items():
        yield Problem(place, why)


def _strangers(topology: Topology) -> Iterator[Problem]:
    """Errors of pools whose workers the router would never pair: they compute differently, or pages
    of one cannot be converted into those of the other."""
    first = topology.pools[0]
    alike = ["engine", "dtype", "weights", "exact"]
    if _said(topology, first, "exact"):  # holds for equal numbers of ranks, and pages of one dtype
        alike += ["tensor_parallel", "kv_dtype"]
    for i, pool in enumerate(topology.pools):
        for name in alike:
            ours, theirs = (_said(topology, its, name) for its in (pool, first))
            if ours != theirs:
                when = "in exact mode " * (name in ("tensor_parallel", "kv_dtype"))
                yield Problem(
                    ("pools", i, name),
                    f"{name} is {ours} in pool {pool.title} and {theirs} in pool {first.title}: "
                    f"{when}rows that begin in one could not go on in the other",
                )
        if pool.role == "decode" and "kv_dtype" not in alike:
            yield from _unmade(topology, i)


def _unmade(topology: Topology, nth: int) -> Iterator[Problem]:
    """Errors of a decode pool whose pages a prefill pool cannot make: FP8 pages are converted from
    others, but not into others."""
    pool = topology.pools[nth]
    ours = _said(topology, pool, "kv_dtype")
    for other in topology.pools:
        theirs = _said(topology, other, "kv_dtype")
        if other.role == "prefill" and theirs == "fp8" != ours:
            yield Problem(
                ("pools", nth, "kv_dtype"),
                f"kv_dtype is {ours} in pool {pool.title} and {theirs} in pool {other.title}: "
                "what FP8 pages have lost cannot be made again; FP8 can be made of others",
            )


def _said(topology: Topology, pool: Pool, name: str) -> object:
    """An option of the workers of that pool, or its default."""
    model = topology.model_of(pool)
    return model.engine if name == "engine" else getattr(model.config, name)


def _problem(detail: Mapping[str, Any]) -> Problem:
    """One of pydantic's errors as our own message."""
    place, value = detail["loc"], detail["input"]
    match detail["type"]:
        case "extra_forbidden":
            return Problem(place, f"there is no field {place[-1]}{_did_you_mean(place)}")
        case "missing":
            return Problem(place, f"{dotted(place)} is missing")
        case "model_type":
            return Problem(place, f"{dotted(place) or 'a topology'} must be fields with values")
    message = str(detail["msg"]).removeprefix("Input ").removeprefix("String ")
    shown = "empty" if value is None or value == "" else repr(value)
    return Problem(place, f"{dotted(place)} is {shown}; it {message}")


def _did_you_mean(place: Place) -> str:
    parts: dict[str | int, type[BaseModel]] = {
        "ray": RayOptions, "scaler": ScalerOptions, "router": RouterOptions,
        "timing": TimingOptions, "workers": WorkerOptions, "pools": Pool, "hosts": HostOptions,
        "host_sets": HostSetOptions, "kubernetes": KubernetesOptions,
    }  # fmt: skip
    part = parts.get(place[0], Topology) if len(place) > 1 else Topology
    if place[-1] in part.model_fields:  # it stands where an object of its own would
        return ""
    like = difflib.get_close_matches(str(place[-1]), part.model_fields, n=1)
    if like:
        return f"; did you mean {like[0]}?"
    elsewhere = [name for name, p in parts.items() if place[-1] in p.model_fields]
    if part is not Topology and place[-1] in Topology.model_fields:
        return "; it is the whole cluster's, at the top of the file"
    if elsewhere:
        return f"; it belongs to {' or '.join(map(str, elsewhere))}"
    return f"; there are {', '.join(part.model_fields)}"


def dotted(place: Place) -> str:
    """pools[0].role"""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in place).removeprefix(".")
