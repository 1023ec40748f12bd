"""The router goes first where cores are short: what waits for it waits at every worker and client.

Workers that compute on the CPU take all cores that there are. A router that then gets an equal part
reads what comes seconds late, refusals of a flood above all. It needs little: part of a core.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

ROUTER_NICE = -10


def try_prefer(pid: int, nice: int = ROUTER_NICE) -> bool:
    """Give that niceness to a process that leads a session of its own and has no threads yet.

    False, and nothing is changed, if we may not: it takes root, CAP_SYS_NICE or RLIMIT_NICE.
    """
    try:
        os.setpriority(os.PRIO_PROCESS, pid, nice)
    except (PermissionError, ProcessLookupError):
        return False
    # with autogroups, cores are shared out among sessions, and by niceness only within each
    with suppress(OSError):  # there are none here, or they were changed too often just now
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))
    return True
