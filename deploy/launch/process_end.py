"""How a process that is not our child has ended: the kernel reports it for a pidfd (Linux 6.15)."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import struct

_INFO_BYTES = 64  # struct pidfd_info in its first version: mask first, exit_code last
_GET_INFO = 3 << 30 | _INFO_BYTES << 16 | 0xFF << 8 | 11
_EXIT = 1 << 3
_REAPED_WITHIN_S = 0.2
_POLL_S = 0.005


def in_words(code: int) -> str:
    """A `Popen.returncode` for display: `killed by SIGKILL` or `exited with 3`."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"


async def how_it_ended(pidfd: int) -> str:
    """How the process ended, for display. Waits a moment for its parent to reap it; returns "is
    gone" if that takes longer, and on older kernels."""
    for _ in range(int(_REAPED_WITHIN_S / _POLL_S)):
        status = _exit_status(pidfd)
        if status is not None:
            return in_words(os.waitstatus_to_exitcode(status))
        await asyncio.sleep(_POLL_S)
    return "is gone"


def _exit_status(pidfd: int) -> int | None:
    info = bytearray(struct.pack("Q", _EXIT).ljust(_INFO_BYTES, b"\0"))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:  # not reaped yet, or the kernel is too old
        return None
    (mask,) = struct.unpack_from("Q", info)
    (status,) = struct.unpack_from("i", info, _INFO_BYTES - 4)
    return int(status) if mask & _EXIT else None
