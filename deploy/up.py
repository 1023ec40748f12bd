"""`python -m deploy.up`, which `twolane up` becomes: a front process around the launcher.

    front ──fork──▶ launcher ──▶ Ray, router, workers        in a session of their own
      ▲ SIGINT, SIGTERM    ▲
      └──── SIGINT ────────┘

A Ctrl-C reaches the whole group of a terminal, a SIGTERM often does: Ray's daemons would die of it
before the answers have ended, and a Ray that is just starting would hang or abort its process. So
the front alone hears signals. However the launcher ends, the front kills whatever is left of it and
removes its temporary folder. Imports little: the launcher is forked from it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType

from deploy.orphan import adopt_orphans, die_with_parent, end_children
from deploy.scratch import make_scratch, remove_stale_scratch

_STOPS = (signal.SIGINT, signal.SIGTERM)
_WATCHED = (*_STOPS, signal.SIGCHLD)


def main() -> None:
    """Run the command in a child, and end as it ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    adopt_orphans()
    remove_stale_scratch()
    scratch = make_scratch()
    front = os.getpid()
    launcher = os.fork()
    if launcher == 0:
        os.setsid()
        die_with_parent(front)
        _launch(scratch, mask)
        return
    code = _wait(launcher)
    end_children()
    shutil.rmtree(scratch, ignore_errors=True)
    raise SystemExit(code)


def _wait(launcher: int) -> int:
    """Pass stops on until it has ended. Returns its exit code; 128 + the signal that killed it."""
    asked: int = signal.SIGINT
    while True:
        number = signal.sigwait(_WATCHED)
        if number != signal.SIGCHLD:
            asked = number
            os.kill(launcher, signal.SIGINT)  # never SIGTERM: Ray would make it abort
            continue
        pid = -1
        while pid:  # orphans end here, too
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == launcher:
                return _exit_code(status, asked)


def _exit_code(status: int, asked: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    if code == 128 + signal.SIGINT:  # see `_stop`
        return 128 + asked
    if code >= 0:
        return code
    print(f"the launcher was killed by {signal.Signals(-code).name}", file=sys.stderr, flush=True)
    return 128 - code


def _launch(scratch: Path, mask: set[int | signal.Signals]) -> None:
    """Until its event loop takes the signals over, they end the launcher here."""
    for number in _STOPS:
        signal.signal(number, _stop)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    from deploy.up_command import up

    up(prog_name="twolane up", obj=scratch)


def _stop(number: int, frame: FrameType | None) -> None:
    """Nothing has been started yet. As a shell has it, the exit code is 128 + the signal."""
    for other in _STOPS:
        signal.signal(other, signal.SIG_IGN)  # leave the ending in peace
    print("stopped", file=sys.stderr, flush=True)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
