"""Whether a process that a test watches has ended."""

from __future__ import annotations

import psutil


def is_alive(process: int | psutil.Process) -> bool:
    """False for one that ends while it is asked about, and for one that is not waited for yet."""
    try:
        if isinstance(process, int):
            process = psutil.Process(process)
        return process.is_running() and bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
