"""No process outlives the launcher, however it dies."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import select
import signal
import threading
from collections.abc import Container, Iterator
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GROUP_POLL_S = 0.01
_PROC = Path("/proc")


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGKILL when the thread that started this process ends; exit at once if
    the parent is dead already. Linux; elsewhere only the second half holds."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise SystemExit("the parent process is gone")


def outlive_parent() -> None:
    """Take back `die_with_parent`."""
    _prctl(_PR_SET_PDEATHSIG, 0)


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
    none is left. Only for a process that starts nothing meanwhile."""
    while ours := [pid for pid in children() if pid not in but]:
        for pid in ours:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


async def end_group(leader: int) -> None:
    """Kill what is left of a process group whose leader has ended; return when nothing is. Waits
    while this process has no descriptor left to look with."""
    while True:
        with contextlib.suppress(OSError):
            left = group_members(leader)
            if not left:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(_GROUP_POLL_S)


def group_members(leader: int) -> list[int]:
    """The pids of that process group but its leader. Who waits to be reaped has let go of all that
    it had, unless threads of its are still ending. None without /proc. Raises OSError if it cannot
    look at all of them."""
    found = []
    for pid, stat in _processes():
        state, group, n_threads = stat[0], int(stat[2]), int(stat[17])
        is_over = state in "ZX" and n_threads <= 1
        if group == leader and pid != leader and not is_over:
            found.append(pid)
    return found


def children() -> list[int]:
    """The pids of this process' children, those that have ended among them. None without /proc."""
    return [pid for pid, stat in _processes() if int(stat[1]) == os.getpid()]


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Each pid, and the fields of its /proc/PID/stat from the third, its state, on. Raises OSError
    if it cannot look."""
    if not _PROC.is_dir():
        return
    for name in os.listdir(_PROC):  # `glob` would find nothing without a free descriptor
        if not name.isdigit():
            continue
        try:
            stat = (_PROC / name / "stat").read_text(errors="replace").rpartition(") ")[2].split()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended meanwhile, or is another user's
        if stat:
            yield int(name), stat


def _prctl(option: int, value: int) -> None:
    if hasattr(os, "pidfd_open"):  # Linux
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({option})")
