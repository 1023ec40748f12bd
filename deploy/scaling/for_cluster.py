"""The autoscaler of a cluster spec: its limits, and the figures that its learning begins with.

What a worker is made of is imported for clusters that need it alone: it takes half a second, in
which the launcher of any other cluster can have started its workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from twolane.deploy.controller.capacity import StepCost
from twolane.deploy.controller.limits import Limits, PoolLimits
from twolane.deploy.controller.observation import Role
from twolane.deploy.controller.observer import ObserverConfig
from twolane.deploy.controller.priors import Hardware, hardware, read_hardware
from twolane.deploy.controller.scaler import Scaler
from twolane.deploy.controller.seats import Inventory, Pool
from twolane.deploy.controller.sizing import pools_by_role
from twolane.deploy.errors import WrongTopologyError
from twolane.deploy.spec.cluster_spec import ClusterSpec, PoolSpec
from twolane.engine.config import CPU_PAGE_TOKENS
from twolane.worker.config import StepLimits

_GPU = "h200"
_CPU_TOKENS = 65_536  # of a pool whose size is not said
_LOCAL_START_S, _LOCAL_FLIP_S = 5.0, 0.5


def scaler_for(
    cluster: ClusterSpec, inventory: Inventory, tell: Callable[[str, str], None]
) -> Scaler | None:
    """None: the cluster does not size its pools. Raises `WrongTopologyError` for one that it cannot
    size."""
    its = cluster.scaler
    if not its.autoscale:
        return None
    with _naming("--prefill", "--decode", "--colocated"):
        pools = pools_by_role(inventory)
    with _naming("--hardware"):
        made, is_measured = _hardware(cluster)
    with _naming("--budget", "--min-prefill", "--min-decode"):
        limits = limits_of(cluster, inventory)
    with _naming("--budget", "--prefill", "--decode"):
        begin = {role: pool.n_configured for role, pool in pools.items()}
        _check_budget(limits.budget_gpus, "the workers to begin with", begin, _gpus(pools))
    config = ObserverConfig(ttft_s=its.slo_ttft_s, gap_s=its.slo_gap_s, trusts_prior=is_measured)
    return Scaler(inventory, limits, made, config, tell)


@contextmanager
def _naming(*options: str) -> Iterator[None]:
    """Raises `WrongTopologyError` that names these options, for what is wrong with their values."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise WrongTopologyError(f"autoscale: {error} ({', '.join(options)})") from error


def limits_of(cluster: ClusterSpec, inventory: Inventory) -> Limits:
    """The law's limits as the cluster's settings say. Raises ValueError for a budget below the
    minimums, or below one worker of each role: from zero the pools grow to those."""
    its = cluster.scaler
    bounds = {
        Role.PREFILL: (its.min_prefill, its.max_prefill),
        Role.DECODE: (its.min_decode, its.max_decode),
    }
    each = _gpus(pools_by_role(inventory))
    budget = its.budget or capacity(inventory)
    least = {role: max(1, bounds[role][0]) for role in Role}
    to_zero = not any(minimum for minimum, _ in bounds.values())
    what = "a prefill and a decode worker" if to_zero else "the fewest workers"
    _check_budget(budget, what, least, each)
    flips = all(pool.flips for pool in cluster.pools)
    return Limits(
        budget_gpus=budget,
        idle_s=its.idle_s,
        pools={
            role: PoolLimits(minimum=least, maximum=most, gpus=each[role], flips=flips)
            for role, (least, most) in bounds.items()
        },
    )


def capacity(inventory: Inventory) -> int:
    """GPUs that all workers may hold, or seats."""
    if any(pool.n_gpus for pool in inventory.pools):
        return sum(len(room.gpus) for room in inventory.rooms)
    return sum(room.seats for room in inventory.rooms)


def _check_budget(
    budget: int, what: str, counts: Mapping[Role, int], each: Mapping[Role, int]
) -> None:
    """Raises ValueError if so many workers are beyond the budget."""
    held = sum(counts[role] * each[role] for role in Role)
    if held > budget:
        raise ValueError(f"{what} hold {held}, more than the budget, which is {budget}")


def _gpus(pools: Mapping[Role, Pool]) -> dict[Role, int]:
    """Of one worker; a seat counts as one."""
    return {role: max(1, pool.n_gpus) for role, pool in pools.items()}


def _hardware(cluster: ClusterSpec) -> tuple[Hardware, bool]:
    """And whether it was measured. Raises ValueError or OSError."""
    name, pool = cluster.scaler.hardware, cluster.pools[0]
    if name is not None and name.endswith(".json"):
        return read_hardware(Path(name)), True
    if name is not None:
        return hardware(name), True
    if pool.devices:
        return hardware(_GPU), True
    if pool.model.engine == "fake":
        return _fake(pool), True
    return _guessed(pool), False


def _fake(pool: PoolSpec) -> Hardware:
    """As its steps would be if it kept to its own times."""
    from twolane.deploy.process.compose_worker import step_limits
    from twolane.deploy.process.engine_host import fake_engine_config

    its, limits = fake_engine_config(pool.model.config), step_limits(pool.settings, StepLimits())
    context_s = its.context_token_s
    return Hardware(
        gpu="fake",
        model=its.model,
        prefill=StepCost(its.step_overhead_s, its.prefill_token_s + context_s, 0.0),
        decode=StepCost(its.step_overhead_s, its.decode_row_s, context_s),
        gap_jitter_s=0.005,
        first_token_s=0.005,
        handover_s=0.005,
        rows=limits.decode_rows,
        step_tokens=limits.step_tokens,
        kv_tokens=its.n_pages * its.page_tokens,
        start_s=_LOCAL_START_S,
        flip_s=_LOCAL_FLIP_S,
        sources=("the fake engine's config",),
    )


def _guessed(pool: PoolSpec) -> Hardware:
    """Of a CPU that was not measured: a small model on a few cores."""
    from twolane.deploy.process.compose_worker import step_limits

    limits = step_limits(pool.settings, StepLimits())
    config = pool.model.config
    n_tokens = (config.n_pages or 0) * (config.page_tokens or CPU_PAGE_TOKENS)
    return Hardware(
        gpu="cpu",
        model=config.model_name,
        prefill=StepCost(0.005, 2e-4, 0.0),
        decode=StepCost(0.005, 1e-3, 1e-6),
        gap_jitter_s=0.005,
        first_token_s=0.005,
        handover_s=0.005,
        rows=limits.decode_rows,
        step_tokens=limits.step_tokens,
        kv_tokens=n_tokens or _CPU_TOKENS,
        start_s=2 * _LOCAL_START_S,
        flip_s=_LOCAL_FLIP_S,
        sources=("a guess",),
    )
