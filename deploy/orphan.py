"""Nobody outlives the launcher, however it dies."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGKILL when the thread that started this process ends; exit at once if
    the parent is dead already. Linux; elsewhere only the second half holds."""
    if hasattr(os, "pidfd_open"):  # Linux
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
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
