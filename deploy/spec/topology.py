"""A user's description of a cluster: its pools of workers, its router, its timeouts. This is the
schema of a topology file; the options of `twolane up` make the same.

    options ─┐
             ├─▶ Topology ──resolve──▶ ClusterSpec ──settled, place──▶ WorkerSpecs, each with GPUs
    file  ───┘

Nothing is looked up here: no model, no GPU. Values are parsed and checked in
`twolane.deploy.spec.parse_topology`. The keys are the options that the specs declare
(`twolane.deploy.spec.declared_options`); an unset one is None and keeps the default. `workers`
holds the options for all pools; a pool's own options override them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model

from twolane.deploy.spec.declared_options import Declared, declared, settings
from twolane.deploy.spec.host_options import HostOptions
from twolane.deploy.spec.host_sets import HostSetOptions, KubernetesOptions
from twolane.deploy.spec.settings import (
    DECODE,
    MOST_WORKERS,
    PREFILL,
    ClusterSettings,
    RaySettings,
    RouterSettings,
    ScalerSettings,
    TimingSpec,
    WorkerSettings,
)
from twolane.deploy.spec.specs import ModelSpec
from twolane.engine.config import EngineConfig

ROLES = {"prefill": (PREFILL,), "decode": (DECODE,), "both": (PREFILL, DECODE)}
NAMES = {"prefill": "prefill", "decode": "decode", "both": "colocated"}  # of pools without one
WORKER_KINDS = (ModelSpec, EngineConfig, WorkerSettings)
OPTIONS = {  # by field and by key
    name: each
    for each in declared(
        ClusterSettings, RaySettings, RouterSettings, ScalerSettings, TimingSpec, *WORKER_KINDS
    )
    for name in (each.field, each.key)
}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    if TYPE_CHECKING:  # the fields that `_with_options` adds

        def __getattr__(self, name: str) -> Any: ...


PartT = TypeVar("PartT", bound=_Part)


def _with_options(*kinds: type, is_final: bool = False) -> Callable[[type[PartT]], type[PartT]]:
    """A class decorator that adds the options of these dataclasses as fields. An unset field is
    None, or the default if nothing else could set the option."""

    def decorate(part: type[PartT]) -> type[PartT]:
        found: dict[str, Any] = {}
        for each in declared(*kinds):
            kind = type_of(each)
            found[each.key] = (kind, each.usual) if is_final else (kind | None, None)
        return create_model(
            part.__name__, __base__=part, __doc__=part.__doc__, __module__=part.__module__, **found
        )

    return decorate


def type_of(each: Declared) -> Any:
    """The type of its values in a topology, with their bounds."""
    its = each.option
    kind: Any = Literal[its.choices] if its.choices else each.hint
    if get_origin(each.hint) is tuple:
        return Annotated[tuple[kind, ...], Field(min_length=1, strict=False)]
    return Annotated[
        kind, Field(ge=its.least, gt=its.above, le=its.most, multiple_of=its.multiple_of)
    ]


@_with_options(*WORKER_KINDS)
class WorkerOptions(_Part):
    """A worker's engine, steps and transports."""


class Pool(WorkerOptions):
    """Workers with equal options. Its options override those that the topology sets for all
    pools."""

    role: Literal["prefill", "decode", "both"]
    name: Annotated[str, Field(pattern="^[a-z0-9][a-z0-9-]*$", max_length=40)] | None = None
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)] = 1

    @property
    def title(self) -> str:
        """The pool's name, by default its role's. Worker ids begin with it."""
        return self.name or NAMES[self.role]


@_with_options(RouterSettings)
class RouterOptions(_Part):
    """The router's listeners for clients and for workers, its limits, and the defaults of
    requests."""


@_with_options(TimingSpec)
class TimingOptions(_Part):
    """Timeouts of failure detection and of a clean stop."""


@_with_options(RaySettings, is_final=True)
class RayOptions(_Part):
    """The Ray that runs the cluster."""


@_with_options(ScalerSettings)
class ScalerOptions(_Part):
    """Pools that size themselves."""


@_with_options(ClusterSettings, is_final=True)
class _ClusterOptions(_Part):
    """Options that hold for the whole cluster."""


class Topology(_ClusterOptions):
    """One cluster."""

    ray: RayOptions = RayOptions()
    scaler: ScalerOptions = ScalerOptions()
    router: RouterOptions = RouterOptions()
    timing: TimingOptions = TimingOptions()
    workers: WorkerOptions = WorkerOptions()
    kubernetes: KubernetesOptions = KubernetesOptions()
    hosts: Annotated[tuple[HostOptions, ...], Field(strict=False)] = ()
    host_sets: Annotated[tuple[HostSetOptions, ...], Field(strict=False)] = ()
    pools: Annotated[tuple[Pool, ...], Field(strict=False)]

    def options_of(self, pool: Pool) -> WorkerOptions:
        """All options of the workers of that pool, by key."""
        of_all, own = given(self.workers), given(pool)
        if "pages" in own or "kv_bytes" in own:  # two ways to say one thing
            of_all = {k: v for k, v in of_all.items() if k not in ("pages", "kv_bytes")}
        both = of_all | own
        return WorkerOptions(**{k: v for k, v in both.items() if k in WorkerOptions.model_fields})

    def model_of(
        self, pool: Pool, *, model_dir: Path = Path(), name: str = "", threads: int = 1
    ) -> ModelSpec:
        """The model and engine of that pool's workers, with `threads` unless an option sets them.
        Raises ValueError or EngineConfigError for options that contradict each other."""
        said = {"threads": threads, **given(self.options_of(pool))}
        config = EngineConfig(model_dir=model_dir, model_name=name, **settings(EngineConfig, said))
        return ModelSpec(config=config, **settings(ModelSpec, said))


def given(part: BaseModel) -> dict[str, Any]:
    """The fields that are set."""
    return {name: value for name, value in part if value is not None}
