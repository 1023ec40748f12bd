"""Decides on which device the workers of a cluster compute, and which GPUs each of them gets."""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from twolane.deploy.errors import StartError
from twolane.deploy.spec.cluster_spec import ClusterSpec, HostSpec, PoolSpec
from twolane.deploy.spec.placement import AssignedGpus, Host, Need, place
from twolane.deploy.spec.specs import ProcessSpec, WorkerSpec

_DRIVER = Path("/proc/driver/nvidia/gpus")
_LEAST_CAPABILITY = (9, 0)  # as `twolane.engine.load` has it, which imports torch
_ASK = ("nvidia-smi", "--query-gpu=uuid,compute_cap", "--format=csv,noheader")
_ASK_S = 20.0  # an idle driver takes seconds to wake


def visible_devices(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The GPUs that our processes can use, as CUDA_VISIBLE_DEVICES names them.

    These are the GPUs in the environment variable if it is set; else the UUIDs that `nvidia-smi`
    lists, without GPUs too old for the kernels; else the indices of the driver's GPUs.
    """
    environment = os.environ if environment is None else environment
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return tuple(name.strip() for name in named.split(",") if name.strip())
    try:
        asked = subprocess.run(_ASK, capture_output=True, text=True, check=True, timeout=_ASK_S)
    except (OSError, subprocess.SubprocessError):
        n_gpus = len(list(_DRIVER.iterdir())) if _DRIVER.exists() else 0
        return tuple(str(i) for i in range(n_gpus))
    return read_gpus(asked.stdout)


def check_gpus(cluster: ClusterSpec) -> None:
    """Raise `StartError` if workers are to compute on GPUs, got none, and CUDA's driver is not
    there either. `visible_devices` alone may miss one."""
    are_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    for pool in cluster.pools:
        is_for_gpus = _computes_on_gpu(pool) and pool.model.config.device == "cuda"
        if is_for_gpus and not pool.devices and (are_hidden or not _has_cuda()):
            why = "CUDA_VISIBLE_DEVICES is empty" if are_hidden else "there is no CUDA driver"
            raise StartError(f"device is cuda, and {why} here: leave it out, or take --device cpu")


def _has_cuda() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def read_gpus(table: str) -> tuple[str, ...]:
    """Parse UUIDs from lines like `GPU-1b2c…, 9.0`."""
    found = []
    for line in table.splitlines():
        uuid, _, capability = (part.strip() for part in line.partition(","))
        major, _, minor = capability.partition(".")
        if major.isdigit() and (int(major), int(minor or 0)) >= _LEAST_CAPABILITY:
            found.append(uuid)
    return tuple(found)


def settled(
    cluster: ClusterSpec, visible: Sequence[str] | None = None, *, share: bool = False
) -> ClusterSpec:
    """Resolve the device `auto`, and assign GPUs to each worker.

    `visible` are the GPUs to choose from; None: `visible_devices()`, which is called only if a
    worker may compute on a GPU. Raises `StartError` if pools differ in their device, or if there
    are too few GPUs.
    """
    gpus: tuple[str, ...] = ()
    if any(_computes_on_gpu(pool) for pool in cluster.pools):
        gpus = visible_devices() if visible is None else tuple(visible)
    cluster = on_one_kind(cluster, len(gpus), share=share)
    return placed(cluster, [Host("this machine", gpus)], share=share)


def settled_on(
    cluster: ClusterSpec, offered: Mapping[str, Sequence[str]], *, share: bool = False
) -> ClusterSpec:
    """Like `settled`, for a cluster on several hosts: `offered` are the GPUs that each host's agent
    offers. Also assigns a host to every worker. Raises `StartError`."""
    hosts = [
        Host(host.name, tuple(offered.get(host.name, ())) if host.gpus is None else host.gpus)
        for host in cluster.hosts
    ]
    cluster = on_one_kind(cluster, sum(len(host.gpus) for host in hosts), share=share)
    on_gpus = any(_computes_on_gpu(pool) for pool in cluster.pools)
    if cluster.host_sets:
        return _seated_in_sets(cluster, on_gpus=on_gpus)
    if on_gpus and any(host.gpus for host in hosts):
        return placed(cluster, hosts, share=share)
    return _seated(cluster)


def _seated(cluster: ClusterSpec) -> ClusterSpec:
    """Assign hosts to workers that compute on the CPU: each host takes as many as it has seats, or
    an equal share."""
    hosts = [
        Host(host.name, tuple(map(str, range(n_seats(cluster, host))))) for host in cluster.hosts
    ]
    needs = [Need(pool.name, pool.roles, pool.n_workers, 1) for pool in cluster.pools]
    total = sum(len(host.gpus) for host in hosts)
    if total < cluster.n_workers:
        raise StartError(
            f"{cluster.n_workers} workers need {cluster.n_workers} seats; the hosts have {total} "
            "(hosts[].seats)"
        )
    seats = zip(cluster.pools, place(needs, hosts), strict=True)
    return replace(cluster, pools=tuple(_on_hosts(pool, its) for pool, its in seats))


def n_seats(cluster: ClusterSpec, host: HostSpec | None) -> int:
    """How many workers that compute on the CPU a host takes; None: this machine."""
    if host is not None and host.seats is not None:
        return host.seats
    if cluster.seats is not None:
        return cluster.seats
    if host is None:
        budget = (cluster.scaler.budget or 0) if cluster.scaler.autoscale else 0
        return max(cluster.n_workers, budget, len(os.sched_getaffinity(0)))
    return math.ceil(cluster.n_workers / len(cluster.hosts))


def on_one_kind(cluster: ClusterSpec, n_gpus: int, *, share: bool = False) -> ClusterSpec:
    """Put all workers on the same kind of device, as rows that begin in float32 on a CPU cannot
    continue in bfloat16 on a GPU. If the device is `auto` and some workers have one role, all
    compute on the CPU unless each rank gets its own GPU or may share one. No worker decides by
    itself.
    """
    devices = {pool.model.config.device: pool.name for pool in cluster.pools}
    open_ones = devices.pop("auto", None)
    if len(devices) > 1:
        kinds = ", ".join(f"{device} in pool {name}" for device, name in sorted(devices.items()))
        raise StartError(f"all workers compute on the same kind of device; here: {kinds}")
    if open_ones is None:
        return cluster
    has_one_role = any(len(pool.roles) == 1 for pool in cluster.pools)
    n_ranks = sum(pool.n_workers * pool.model.config.tensor_parallel for pool in cluster.pools)
    to_cpu = has_one_role and not share and n_ranks > n_gpus
    (device,) = devices or (["cpu"] if to_cpu else ["auto"])
    return replace(cluster, pools=tuple(_on(device, pool) for pool in cluster.pools))


def _on(device: str, pool: PoolSpec) -> PoolSpec:
    config = replace(pool.model.config, device=device)
    return replace(pool, model=replace(pool.model, config=config))


def placed(cluster: ClusterSpec, hosts: Sequence[Host], *, share: bool = False) -> ClusterSpec:
    """Assign GPUs to each worker; no two workers have a GPU in common unless `share`.

    Assigns none if workers compute on the CPU or no GPU is visible. Raises `StartError`.
    """
    pools = [pool for pool in cluster.pools if _computes_on_gpu(pool)]
    if not pools or not any(host.gpus for host in hosts):
        return cluster
    needs = [Need(p.name, p.roles, p.n_workers, p.model.config.tensor_parallel) for p in pools]
    try:
        seats = place(needs, hosts, share=share)
    except StartError as error:
        raise StartError(f"{error}. {_instead(needs, hosts, share=share)}") from error
    of_pool = {pool.name: its for pool, its in zip(pools, seats, strict=True)}
    cluster = replace(
        cluster, pools=tuple(_on_gpus(pool, of_pool.get(pool.name, ())) for pool in cluster.pools)
    )
    if cluster.hosts:
        on_hosts = (_on_hosts(pool, of_pool.get(pool.name, ())) for pool in cluster.pools)
        cluster = replace(cluster, pools=tuple(on_hosts))
    _check_shared(cluster)
    return cluster


def _on_gpus(pool: PoolSpec, its: Sequence[AssignedGpus]) -> PoolSpec:
    return replace(pool, devices=tuple(seat.gpus for seat in its))


def _on_hosts(pool: PoolSpec, its: Sequence[AssignedGpus]) -> PoolSpec:
    return replace(pool, host_names=tuple(seat.host for seat in its))


def environment_of(spec: ProcessSpec) -> dict[str, str]:
    """Environment variables that a process must have when it starts. A worker with GPUs of its own
    sees no others. A router, and a worker that computes on the CPU, gets few glibc arenas. A
    router's memory stays flat under load then: its threads free memory that others allocated, and
    each arena keeps its peak size. A worker leaves addresses to its threads and its pool where they
    are limited (`ulimit -v`): each arena reserves 64 MB of them."""
    if isinstance(spec, WorkerSpec) and spec.devices:
        return {"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(spec.devices))}
    is_worker = isinstance(spec, WorkerSpec)
    if is_worker and spec.model.engine != "fake" and spec.model.config.device == "cuda":
        return {}  # it needs one, though none is visible here
    return {"MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", "2")}


def _computes_on_gpu(pool: PoolSpec) -> bool:
    return pool.model.engine != "fake" and pool.model.config.device != "cpu"


def _instead(needs: Sequence[Need], hosts: Sequence[Host], *, share: bool) -> str:
    """What the user could do instead, for an error message."""
    are_too_wide = max(need.gpus for need in needs) > max(len(host.gpus) for host in hosts)
    ways = ["start fewer workers"] * (not are_too_wide)
    if any(need.gpus > 1 for need in needs):
        ways.append("spread each over fewer GPUs (--tensor-parallel)")
    if not share and any(host.gpus for host in hosts):
        ways.append("let workers share GPUs (--share-gpus)")
    return f"Either {', or '.join(ways)}, or compute on the CPU (--device cpu)"


def _check_shared(cluster: ClusterSpec) -> None:
    """Raise `StartError` if ranks share a GPU without a fixed pool size: each would take most of
    the memory that it finds free when it starts."""
    taken = Counter(gpu for pool in cluster.pools for gpu in pool.gpus)
    for pool in cluster.pools:
        config = pool.model.config
        is_open = config.n_pages is None and config.kv_bytes is None
        if is_open and any(taken[gpu] > 1 for gpu in pool.gpus):
            raise StartError(
                f"workers of pool {pool.name} share GPUs: each must be told how much of one it "
                "takes for its pages, by --pages or --kv-bytes; or start fewer, or take "
                "--device cpu"
            )


def _seated_in_sets(cluster: ClusterSpec, *, on_gpus: bool) -> ClusterSpec:
    """Each pool's workers on the first hosts of the sets that take them. Raises `StartError` if
    there are too few."""
    taken: dict[str, int] = {}  # GPUs, or seats, by host
    return replace(
        cluster, pools=tuple(_seated_pool(cluster, pool, taken, on_gpus) for pool in cluster.pools)
    )


def _seated_pool(
    cluster: ClusterSpec, pool: PoolSpec, taken: dict[str, int], on_gpus: bool
) -> PoolSpec:
    need = pool.model.config.tensor_parallel if on_gpus else 1
    names: list[str] = []
    devices: list[tuple[str, ...]] = []
    for host in cluster.hosts:
        if host.made is None or pool.name not in host.made.pools:
            continue
        room = _room(host, on_gpus=on_gpus)
        while len(names) < pool.n_workers and taken.get(host.name, 0) + need <= room:
            first = taken.get(host.name, 0)
            taken[host.name] = first + need
            names.append(host.name)
            devices.append((host.gpus or ())[first : first + need])
    if len(names) < pool.n_workers:
        raise StartError(
            f"the host sets of pool {pool.name} have room for {len(names)} of its "
            f"{pool.n_workers} workers (host_sets[].most)"
        )
    return replace(pool, host_names=tuple(names), devices=tuple(devices) if on_gpus else ())


def _room(host: HostSpec, *, on_gpus: bool) -> int:
    return len(host.gpus or ()) if on_gpus else host.seats or 1
