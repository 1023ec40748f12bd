"""Clusters as values, by how many workers of each kind they have."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from twolane.deploy.spec.cluster_spec import ClusterSpec, PoolSpec
from twolane.deploy.spec.declared_options import settings
from twolane.deploy.spec.settings import DECODE, PREFILL, RouterSettings, WorkerSettings
from twolane.deploy.spec.specs import ModelSpec
from twolane.engine.config import EngineConfig


def model_with(
    *, model_dir: Path | str = "", name: str = "m", engine: str = "model", **options: Any
) -> ModelSpec:
    """A model as a cluster has it where nobody says more; `options` are fields of EngineConfig."""
    facts = settings(EngineConfig, {}) | options
    config = EngineConfig(model_dir=Path(model_dir), model_name=name, **facts)
    return ModelSpec(config=config, engine=engine)


def changed(model: ModelSpec, *, engine: str | None = None, **options: Any) -> ModelSpec:
    """That model with other `options`."""
    config = replace(model.config, **options)
    return ModelSpec(config=config, engine=engine or model.engine)


def cluster_with(
    model: ModelSpec,
    *,
    prefill: int = 0,
    decode: int = 0,
    colocated: int = 0,
    settings: WorkerSettings | None = None,
    **others: Any,
) -> ClusterSpec:
    """Each kind is a pool; all pools are alike. `others` are fields of the cluster's, or of its
    router's settings."""
    kinds = [
        ("prefill", (PREFILL,), prefill),
        ("decode", (DECODE,), decode),
        ("colocated", (PREFILL, DECODE), colocated),
    ]
    settings = settings or WorkerSettings()
    pools = tuple(
        PoolSpec(name=name, roles=roles, model=model, n_workers=n, settings=settings)
        for name, roles, n in kinds
        if n
    )
    of_router = {field.name for field in fields(RouterSettings)} & others.keys()
    router = RouterSettings(**{name: others.pop(name) for name in of_router})
    return ClusterSpec(model=model, pools=pools, settings=router, **others)
