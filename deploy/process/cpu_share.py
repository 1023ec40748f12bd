"""Gives the router priority on a busy machine, because every worker and client waits for it.

Workers that compute on the CPU use all cores. With an equal share of them the router reads its
messages seconds late, which shows most when it has to refuse a flood. It needs only part of a core.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

ROUTER_NICE = -10


def try_prefer(pid: int, nice: int = ROUTER_NICE) -> bool:
    """Set the niceness of a process that leads its own session and has no threads yet.

    Returns False and changes nothing without the permission: root, CAP_SYS_NICE or RLIMIT_NICE.
    """
    try:
        os.setpriority(os.PRIO_PROCESS, pid, nice)
    except (PermissionError, ProcessLookupError):
        return False
    # with autogroups, cores are shared out among sessions, and by niceness only within each
    with suppress(OSError):  # there are none here, or they were changed too often just now
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))
    return True
