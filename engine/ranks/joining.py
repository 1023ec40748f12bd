"""Joins a rank's process to the others, and loads its engine."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from twolane.engine.config import EngineConfig
from twolane.engine.parallel.collective import Collective, HostCollective, LibraryCollective
from twolane.engine.progress import Progress
from twolane.engine.ranks.place import Place
from twolane.engine.step import Engine

JOIN_TIMEOUT = timedelta(minutes=5)


def load_rank(config: EngineConfig, place: Place, progress: Progress) -> Engine:
    """Join the ranks that meet in the place's file, over gloo or NCCL, and load a rank's engine.

    Takes over this process: the group is torch's default one; the GPU is the rank-th visible one
    or, if there are fewer than ranks, one that several ranks share. The pool is exported.
    """
    if config.device == "cpu":
        from twolane.engine.cpu.engine import load_engine

        collective: Collective = join("gloo", place, in_order=True)
        return load_engine(config, progress=progress, ranks=collective, pool_fd=place.pool_fd)
    from twolane.engine.cuda.startup.load import load_cuda_engine

    n_cards = torch.cuda.device_count()
    device = torch.device("cuda", place.rank % n_cards)
    torch.cuda.set_device(device)
    if n_cards < place.ranks:
        join("gloo", place, in_order=True)
        collective = HostCollective()
    else:
        collective = join("nccl", place, in_order=config.exact, device=device)
    engine = load_cuda_engine(config, device=device, progress=progress, ranks=collective)
    engine.export_pool()
    return engine


def join(
    backend: str, place: Place, *, in_order: bool, device: torch.device | None = None
) -> Collective:
    """Make this process a rank of torch's default group; see `LibraryCollective`."""
    # Ranks are processes of one machine: gloo need not search for its address.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # The group detects a dead rank, sooner than NCCL's threads.
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    dist.init_process_group(
        backend,
        store=dist.FileStore(place.store, place.ranks),  # type: ignore[attr-defined]
        rank=place.rank,
        world_size=place.ranks,
        timeout=JOIN_TIMEOUT,
        device_id=device,
    )
    return LibraryCollective(in_order=in_order)
