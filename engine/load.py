"""Loads an engine on the device that its config names. Imports GPU modules only if used."""

from __future__ import annotations

import logging
from dataclasses import replace
from importlib.util import find_spec

import torch

from twolane.engine.config import EngineConfig
from twolane.engine.errors import EngineConfigError
from twolane.engine.progress import Progress
from twolane.engine.step import Engine

log = logging.getLogger(__name__)

LEAST_CAPABILITY = (9, 0)  # Hopper


def pick_device(device: str) -> str:
    """`cpu` or `cuda`. Raises EngineConfigError if a GPU is requested but cannot be used: the
    kernels need Hopper or newer. `auto` then picks the CPU, and logs why if there is a GPU."""
    if device == "cpu":
        return device
    missing = ""
    has_card = torch.cuda.is_available()
    if not has_card:
        missing = "torch sees no CUDA device"
    elif torch.cuda.get_device_capability() < LEAST_CAPABILITY:
        missing = f"{torch.cuda.get_device_name()} is older than Hopper"
    elif find_spec("triton") is None:
        missing = "triton is not installed"
    if missing and device == "cuda":
        raise EngineConfigError(f"device is 'cuda'; {missing} here")
    if missing and has_card:
        log.warning("%s: the model runs on the CPU, and the GPU is not used", missing)
    return "cpu" if missing else "cuda"


def pick_dtype(dtype: str, device: str) -> str:
    """The meaning of `auto` on `cpu` or on `cuda`; other names are returned unchanged.

    bfloat16 on a GPU: checkpoints use it, and float32 has no tensor cores and twice the bytes.
    float32 on a CPU, since many CPUs have no arithmetic for less.
    """
    if dtype != "auto":
        return dtype
    return "bfloat16" if device == "cuda" else "float32"


def settle(config: EngineConfig) -> EngineConfig:
    """Resolve the `auto` device and dtype. Raises EngineConfigError."""
    device = pick_device(config.device)
    return replace(config, device=device, dtype=pick_dtype(config.dtype, device))


def load_engine(
    config: EngineConfig,
    *,
    pool_memory: memoryview | None = None,
    pool_fd: int | None = None,
    progress: Progress | None = None,
) -> Engine:
    """`twolane.engine.cpu.engine.load_engine` or
    `twolane.engine.cuda.startup.load.load_cuda_engine`, or a group of ranks.

    On a CPU, pages are in `pool_memory`, if given; ranks also need the file `pool_fd` that it maps.
    """
    config = settle(config)
    if pool_memory is not None and config.device != "cpu":
        raise EngineConfigError("a GPU's pool is in its own memory, not in pool_memory")
    if config.tensor_parallel > 1:
        if (pool_memory is None) != (pool_fd is None):
            raise EngineConfigError("ranks also map the pool: pool_memory needs its pool_fd")
        if config.device == "cuda":
            _check_cards(config)
        from twolane.engine.ranks.start import start_ranks

        return start_ranks(config, progress=progress, pool_memory=pool_memory, pool_fd=pool_fd)
    if config.device == "cpu":
        from twolane.engine.cpu.engine import load_engine as load_cpu_engine

        return load_cpu_engine(config, pool_memory=pool_memory, progress=progress)
    from twolane.engine.cuda.startup.load import load_cuda_engine

    return load_cuda_engine(config, progress=progress)


def _check_cards(config: EngineConfig) -> None:
    found, ranks = torch.cuda.device_count(), config.tensor_parallel
    if found >= ranks:
        return
    if not config.share_gpus:
        raise EngineConfigError(f"tensor_parallel is {ranks}; {found} GPUs are visible here")
    if config.n_pages is None and config.kv_bytes is None:
        raise EngineConfigError("ranks that share a GPU need n_pages or kv_bytes")
