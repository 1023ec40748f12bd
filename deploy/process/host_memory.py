"""How much of this machine's memory a pool may take.

What is taken past that wakes the kernel's OOM killer, and that may end any process, not just ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

RESERVE_BYTES = 256 << 20  # for what the process needs besides its pool
_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def check_room(n_bytes: int, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> None:
    """Raises MemoryError where a pool of so many bytes does not fit, with the reserve besides."""
    if not n_bytes:
        return
    available = available_bytes(proc, cgroups)
    if available is not None and n_bytes > available - RESERVE_BYTES:
        raise MemoryError(
            f"a pool of {_gib(n_bytes)}; {_gib(available)} of memory are available here, and "
            f"{_gib(RESERVE_BYTES)} of them are kept free: give fewer --pages or --kv-bytes"
        )


def available_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int | None:
    """Of the machine, or of the tightest cgroup (v2) around this process. None: unknown."""
    bounds = [*_of_machine(proc / "meminfo"), *_of_cgroups(proc / "self/cgroup", cgroups)]
    return min(bounds, default=None)


def _of_machine(meminfo: Path) -> Iterator[int]:
    found = _facts(meminfo).get("MemAvailable:")
    if found is not None:
        yield found * 1024


def _of_cgroups(membership: Path, root: Path) -> Iterator[int]:
    """What each cgroup leaves, from ours to the root: files that it caches are given back."""
    ours = [line[3:] for line in _text(membership).splitlines() if line.startswith("0::")]
    for path in ours:
        folder = root / path.strip("/")
        for group in (folder, *folder.parents):
            limit, used = _text(group / "memory.max").strip(), _text(group / "memory.current")
            if limit.isdigit() and used:
                stat = _facts(group / "memory.stat")
                cached = stat.get("active_file", 0) + stat.get("inactive_file", 0)
                yield max(0, int(limit) - int(used) + cached)
            if group == root:
                break


def _facts(path: Path) -> dict[str, int]:
    """Lines of a name, a number and perhaps a unit."""
    words = (line.split() for line in _text(path).splitlines())
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:  # another system, or hidden from us
        return ""


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.2f} GiB"
