"""Clusters as values, by how many workers of each kind they have."""

from __future__ import annotations

from typing import Any

from deploy.spec import DECODE, PREFILL, TRANSPORTS, ClusterSpec, LimitsSpec, ModelSpec, PoolSpec


def cluster_with(
    model: ModelSpec,
    *,
    prefill: int = 0,
    decode: int = 0,
    colocated: int = 0,
    transports: tuple[str, ...] = TRANSPORTS,
    limits: LimitsSpec | None = None,
    **others: Any,
) -> ClusterSpec:
    """Each kind is a pool; all pools are alike."""
    kinds = [
        ("prefill", (PREFILL,), prefill),
        ("decode", (DECODE,), decode),
        ("colocated", (PREFILL, DECODE), colocated),
    ]
    limits = limits or LimitsSpec()
    pools = tuple(
        PoolSpec(
            name=name, roles=roles, model=model, n_workers=n, transports=transports, limits=limits
        )
        for name, roles, n in kinds
        if n
    )
    return ClusterSpec(model=model, pools=pools, limits=limits, **others)
