"""Nobody outlives the launcher, however it dies."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading
from collections.abc import Container
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGKILL when the thread that started this process ends; exit at once if
    the parent is dead already. Linux; elsewhere only the second half holds."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise SystemExit("the parent process is gone")


def die_with(pid: int) -> None:
    """End this process as soon as `pid`, no parent of ours, has ended: a thread waits for that.

    Ray ends actors seconds after their driver is gone, which is late for pages that peers write to.
    """
    fd = os.pidfd_open(pid)

    def wait() -> None:
        select.select([fd], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="die-with", daemon=True).start()


def adopt_orphans() -> None:
    """From now on a descendant whose parent has ended becomes a child of this process. Linux;
    elsewhere nothing changes."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_children(*, but: Container[int]) -> None:
    """Kill and await every child but those; then those that it left to us (`adopt_orphans`), until
    nobody is left. Only for a process that starts nothing meanwhile."""
    while ours := [pid for pid in children() if pid not in but]:
        for pid in ours:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def children() -> list[int]:
    """The pids of this process' children, those that have ended among them. None without /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):  # it has ended meanwhile
            parent = path.read_text(errors="replace").rpartition(") ")[2].split()[1]
            if int(parent) == os.getpid():
                found.append(int(path.parent.name))
    return found


def _prctl(option: int, value: int) -> None:
    if hasattr(os, "pidfd_open"):  # Linux
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({option})")
