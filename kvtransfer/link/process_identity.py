"""Identity of a host, and of a process in a way that a reused pid cannot imitate."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def host_identity() -> str:
    """Equal for processes of one user that share kernel and pid, mount and network namespaces.

    Such processes can reach each other's memory files and abstract sockets, and watch each other.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = "/".join(os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "mnt", "net"))
    return f"{boot}/{spaces}/uid:{os.getuid()}"


def start_ticks(pid: int) -> int:
    """When the process started, in clock ticks since boot. Raises ProcessLookupError."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError as error:
        raise ProcessLookupError(f"no process {pid}") from error
    return int(stat.rpartition(")")[2].split()[19])


def open_pidfd(pid: int, ticks: int) -> int:
    """A pidfd of exactly that incarnation: readable once its last thread has ended.

    The caller closes it. Raises ProcessLookupError when it has ended already, the pid is another
    process' by now, or it is no pid at all; another OSError when no descriptor is free.
    """
    try:
        fd = os.pidfd_open(pid)
    except OverflowError as error:
        raise ProcessLookupError(f"{pid} is no process id") from error
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise ProcessLookupError(f"{pid} is no process id") from error
    try:
        # Read after opening: had the pid been reused before that, the start time would differ.
        if start_ticks(pid) != ticks:  # guard: start ticks
            raise ProcessLookupError(f"process {pid} is another one by now")
    except OSError:
        os.close(fd)
        raise
    return fd
