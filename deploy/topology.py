"""What a user says of a cluster: its pools of workers, its router, its times. The schema of a file,
and what the options of `twolane up` amount to.

    options ─┐
             ├─▶ Topology ──resolve──▶ ClusterSpec ──settled, place──▶ WorkerSpecs, each with GPUs
    file  ───┘

Nothing is looked up here: no model, no GPU. A field has the name of its option (`--kv-dtype` is
`kv_dtype`); one that nobody gave is None and leaves the default of whoever enforces it. `workers`
says what holds for all pools, a pool what holds for it alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from deploy.hub import BUNDLED
from deploy.spec import (
    DECODE,
    MAX_SOCKETS,
    PREFILL,
    TRANSPORTS,
    ModelSpec,
    TimingSpec,
    unsummed,
)

Place = tuple[str | int, ...]  # of a field: ("pools", 0, "role")
Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]
ROLES = {"prefill": (PREFILL,), "decode": (DECODE,), "both": (PREFILL, DECODE)}
NAMES = {"prefill": "prefill", "decode": "decode", "both": "colocated"}  # of pools without one


def _known_transport(name: str) -> str:
    if name not in TRANSPORTS:
        raise PydanticCustomError("transport", f"should be one of {', '.join(TRANSPORTS)}")
    return name


Transport = Annotated[str, AfterValidator(_known_transport)]


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and with which field. The text stands for itself."""

    place: Place
    text: str


class TopologyError(ValueError):
    """All that is wrong with a topology."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(problem.text for problem in problems))
        self.problems = problems


_USUAL = {field.name: field.default for field in fields(ModelSpec)}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class WorkerOptions(_Part):
    """A worker's engine, steps and transports."""

    engine: Literal["model", "fake"] | None = None
    device: Literal["auto", "cpu", "cuda"] | None = None
    tensor_parallel: Annotated[int, Field(ge=1, le=8)] | None = None  # GPUs of each worker
    dtype: Literal["auto", "float32", "bfloat16"] | None = None
    weights: Literal["auto", "fp8"] | None = None
    kv_dtype: Literal["auto", "fp8"] | None = None
    exact: bool | None = None
    pages: Count | None = None  # or kv_bytes, or neither: what there is room for
    kv_bytes: Count | None = None
    page_tokens: Count | None = None
    max_context_tokens: Count | None = None
    load_format: Literal["safetensors", "random"] | None = None
    threads: Count | None = None
    step_tokens: Count | None = None
    decode_rows: Count | None = None
    prefill_window_s: Annotated[float, Field(ge=0)] | None = None
    prefill_watermark_rows: Annotated[int, Field(ge=0)] | None = None
    holding_cap_share: Annotated[float, Field(gt=0, le=1)] | None = None
    transports: Annotated[tuple[Transport, ...], Field(min_length=1, strict=False)] | None = None
    checksums: bool | None = None
    sockets: Annotated[int, Field(ge=1, le=MAX_SOCKETS)] | None = None
    worker_metrics_port: Port | None = None  # of the first worker; the others' follow on


class Pool(WorkerOptions):
    """Workers that are alike. What it says of them goes before what the topology says of all."""

    role: Literal["prefill", "decode", "both"]
    name: Annotated[str, Field(pattern="^[a-z0-9][a-z0-9-]*$", max_length=40)] | None = None
    workers: Count = 1

    @property
    def title(self) -> str:
        """Its own name, or its role's: worker ids begin with it."""
        return self.name or NAMES[self.role]


class RouterOptions(_Part):
    """Where clients come in (`host`, `port`, `http_port`), where workers do, what is refused, and
    what requests take that leave it open."""

    host: str | None = None
    port: Port | None = None
    worker_port: Port | None = None
    metrics_port: Port | None = None
    http_port: Port | None = None
    no_http: bool | None = None
    generation_config: str | None = None  # auto, none, or a directory
    max_prompt_tokens: Count | None = None
    max_output_tokens: Count | None = None
    max_queued: Count | None = None
    growth_tokens: Count | None = None


class TimingOptions(_Part):
    """See `deploy.spec.TimingSpec`."""

    heartbeat_s: Seconds | None = None
    suspicion_s: Seconds | None = None
    lease_s: Seconds | None = None
    grace_s: Seconds | None = None
    stop_grace_s: Seconds | None = None


class Topology(_Part):
    """One cluster. `share_gpus` lets workers share GPUs where there is not one for each."""

    model: str = BUNDLED
    launcher: Literal["ray", "process"] = "ray"
    share_gpus: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    router: RouterOptions = RouterOptions()
    timing: TimingOptions = TimingOptions()
    workers: WorkerOptions = WorkerOptions()
    pools: Annotated[tuple[Pool, ...], Field(strict=False)]

    def options_of(self, pool: Pool) -> WorkerOptions:
        """All that holds for the workers of that pool."""
        of_all, own = given(self.workers), given(pool)
        if "pages" in own or "kv_bytes" in own:  # two ways to say one thing
            of_all = {k: v for k, v in of_all.items() if k not in ("pages", "kv_bytes")}
        both = of_all | own
        return WorkerOptions(**{k: v for k, v in both.items() if k in WorkerOptions.model_fields})


def given(part: BaseModel) -> dict[str, Any]:
    """The fields that say something."""
    return {name: value for name, value in part if value is not None}


def parse_topology(value: object) -> Topology:
    """Raises `TopologyError` with everything that is wrong."""
    try:
        topology = Topology.model_validate(value)
    except ValidationError as error:
        raise TopologyError([_problem(detail) for detail in error.errors()]) from None
    problems = list(_contradictions(topology))
    if problems:
        raise TopologyError(problems)
    return topology


def _contradictions(topology: Topology) -> Iterator[Problem]:
    """What each field alone cannot know."""
    for place, part in (
        (("workers",), topology.workers),
        *((("pools", i), pool) for i, pool in enumerate(topology.pools)),
    ):
        if part.pages is not None and part.kv_bytes is not None:
            yield Problem(
                (*place, "kv_bytes"), "pages and kv_bytes both say how large the pool is: give one"
            )
    for i, pool in enumerate(topology.pools):
        if (
            _said(topology, pool, "engine") == "fake"
            and _said(topology, pool, "tensor_parallel") != 1
        ):
            yield Problem(("pools", i, "tensor_parallel"), "a fake engine has no ranks")
    n_of = dict.fromkeys(NAMES, 0)
    seen: dict[str, int] = {"router": -1}
    for i, pool in enumerate(topology.pools):
        n_of[pool.role] += pool.workers
        if pool.title in seen:
            whose = "the router" if seen[pool.title] < 0 else f"pools[{seen[pool.title]}]"
            text = f"{whose} is called {pool.title} already: give this pool another name"
            yield Problem(("pools", i, "name" if pool.name else "role"), text)
        seen[pool.title] = i
    if not n_of["both"] and not (n_of["prefill"] and n_of["decode"]):
        yield Problem(
            ("pools",),
            f"{n_of['prefill']} prefill and {n_of['decode']} decode workers can answer nothing; "
            "take at least one of each, or one that does both (colocated)",
        )
    if topology.router.http_port is not None and topology.router.no_http:
        text = "http_port says where the HTTP door is, no_http that there is none: give one"
        yield Problem(("router", "no_http"), text)
    yield from _unsummed(topology)
    yield from _strangers(topology)
    try:
        TimingSpec(**given(topology.timing))
    except ValueError as error:
        yield Problem(("timing",), str(error))


def _unsummed(topology: Topology) -> Iterator[Problem]:
    """Each said once, where it was said."""
    found: dict[Place, str] = {}
    for i, pool in enumerate(topology.pools):
        options = topology.options_of(pool)
        refusal = unsummed(options.transports or TRANSPORTS, options.checksums)
        whose: Place = ("workers",) if pool.checksums is None else ("pools", i)
        if refusal:
            found.setdefault((*whose, "checksums"), refusal)
    for place, refusal in found.items():
        yield Problem(place, refusal)


def _strangers(topology: Topology) -> Iterator[Problem]:
    """Pools whose workers the router would never pair: their models' numbers differ, or pages of
    one cannot be made of those of the other."""
    if all(pool.role == "both" for pool in topology.pools):
        return
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
    """A sender makes FP8 pages of its own, but no others of FP8."""
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
    """What holds for the workers of that pool, if nobody says otherwise too."""
    said = getattr(topology.options_of(pool), name)
    return _USUAL[name] if said is None else said


def _problem(detail: Mapping[str, Any]) -> Problem:
    """One of pydantic's findings in our words."""
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
        "router": RouterOptions, "timing": TimingOptions, "workers": WorkerOptions, "pools": Pool
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
