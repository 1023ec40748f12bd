"""Where the workers of a cluster on this machine compute, and which GPUs each of them gets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from deploy.launcher import StartError
from deploy.spec import ClusterSpec

_DRIVER = Path("/proc/driver/nvidia/gpus")


def visible_devices(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The GPUs that a process of ours would see, as CUDA_VISIBLE_DEVICES names them."""
    environment = os.environ if environment is None else environment
    given = environment.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return tuple(name.strip() for name in given.split(",") if name.strip())
    return tuple(str(i) for i in range(len(list(_DRIVER.iterdir())))) if _DRIVER.exists() else ()


def settled(cluster: ClusterSpec, visible: Sequence[str]) -> ClusterSpec:
    """The cluster with its device, as far as `auto` leaves that open, and its GPUs.

    All workers compute on the same kind of device, as rows that begin in float32 on a CPU cannot go
    on in bfloat16 on a GPU: where some have one role, and so need pages that can be moved, all are
    on the CPU. Raises `StartError` as `devices_for` does.
    """
    model = cluster.model
    if model.device == "auto" and cluster.prefill + cluster.decode:
        model = replace(model, device="cpu")
    cluster = replace(cluster, model=model)
    return replace(cluster, devices=devices_for(cluster, visible))


def devices_for(cluster: ClusterSpec, visible: Sequence[str]) -> tuple[str, ...]:
    """Those to share out among the cluster's workers, `tensor_parallel` to each in turn.

    None where workers compute on the CPU, or where one GPU each would be too many: then all see
    all, and the first is everybody's. Raises `StartError` where ranks have no GPU of their own, and
    where workers share one without a word on how much of it each takes: by itself, each would take
    most of what it finds free at its own moment.
    """
    model = cluster.model
    if model.engine == "fake" or model.device == "cpu" or not visible:
        return ()
    wanted = cluster.n_workers * model.tensor_parallel
    if wanted <= len(visible):
        return tuple(visible[:wanted])
    if model.tensor_parallel == 1:
        if model.n_pages is None and model.kv_bytes is None:
            raise StartError(
                f"{cluster.n_workers} workers, and {len(visible)} GPU{'s' * (len(visible) > 1)} "
                "here: workers that share one must be told how much of it each takes for its "
                "pages, by --pages or --kv-bytes; or start fewer, or take --device cpu"
            )
        return ()
    raise StartError(
        f"{cluster.n_workers} workers of {model.tensor_parallel} GPUs each need {wanted}; "
        f"{len(visible)} can be seen here"
    )
