"""Where a figure was measured: processor, memory, GPUs, commit and package versions."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("grpcio", "protobuf", "numpy", "torch", "triton", "ray", "xxhash", "nixl-cu13")
REPOSITORY = Path(__file__).parent.parent


def describe_machine() -> dict[str, Any]:
    """Processor, usable cores, memory, system, GPUs where there are any, and how busy it is."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_bytes / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "gpus": _gpus(),
        "load_average_1m": round(os.getloadavg()[0], 2),  # above the benchmark's own: neighbours
    }


def describe_commit(told: str | None = None) -> dict[str, Any]:
    """The commit of the code that runs, and whether files besides saved results differ from it.
    Outside a git checkout it is `told`, and differences are unknown."""
    commit = _output("git", "rev-parse", "HEAD")
    if not commit:
        return {"commit": told, "dirty": None}
    changed = _output("git", "status", "--porcelain", "--", ".", ":!benchmarks/results")
    return {"commit": commit, "dirty": bool(changed)}


def describe_versions() -> dict[str, str]:
    """Installed versions of the packages that figures depend on."""
    found: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def _gpus() -> list[str]:
    query = "--query-gpu=name,memory.total,driver_version"
    return _output("nvidia-smi", query, "--format=csv,noheader").splitlines()


def _output(*command: str) -> str:
    """The output of `command`; empty if it is not installed or fails."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
