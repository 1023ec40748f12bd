"""`python -m twolane.deploy.up`, which `twolane up` becomes: a front process around the launcher.

    front ──fork──▶ launcher ──▶ Ray, router, workers        in a session of their own
      │                ▲
      └──── SIGINT ────┘   for every SIGINT, SIGTERM, SIGHUP to the front; the third is a SIGKILL

Ctrl-C sends SIGINT to the terminal's whole process group, and SIGTERM is often sent to a group too.
Ray's daemons would die of it before running answers have ended, and a Ray that is still starting
would hang or abort its process. So only the front receives signals. However the launcher ends, the
front kills every process that is left and removes the temporary folder. This module imports little,
because the launcher is forked from it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType

from twolane.deploy.errors import StartError
from twolane.deploy.process.descriptors import UnfitSystemError, raise_limit
from twolane.deploy.process.parent_death import (
    adopt_orphans,
    children,
    die_with_parent,
    end_children,
)
from twolane.deploy.process.scratch import LAST_WORDS, keep_logs, make_scratch, remove_stale_scratch

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WATCHED = (*_STOPS, signal.SIGCHLD)
_MOST_STOPS = 3  # the last one kills the launcher


def main() -> None:
    """Run the command in a child process and exit with its exit code."""
    try:
        raise_limit()
    except UnfitSystemError as error:
        raise SystemExit(f"Error: {error}") from None
    watched = {*_WATCHED}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup
        watched.discard(signal.SIGHUP)
    signal.signal(signal.SIGCHLD, _do_nothing)  # an ignored signal might never be delivered
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    adopt_orphans()
    not_ours = {*children()}  # children of a shell that replaced itself with us by `exec`
    remove_stale_scratch()
    try:
        scratch = make_scratch()
    except StartError as error:
        raise SystemExit(f"Error: {error}") from None
    front = os.getpid()
    launcher = os.fork()
    if launcher == 0:
        os.setsid()
        die_with_parent(front)
        _launch(scratch)
        return
    try:
        code = _wait(launcher, watched)
        end_children(but=not_ours)
        if (scratch / LAST_WORDS).exists():
            with contextlib.suppress(BrokenPipeError):  # the reader may be gone
                os.write(sys.stdout.fileno(), (scratch / LAST_WORDS).read_bytes())
        kept = keep_logs(scratch)
        if kept is not None:
            print(f"a process had died: the logs are kept in {kept}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    raise SystemExit(code)


def _wait(launcher: int, watched: set[signal.Signals]) -> int:
    """Forward stop signals to the launcher until it has ended. Returns its exit code, or 128 + the
    number of the signal that killed it."""
    asked: list[int] = []
    while True:
        number = signal.sigwait(watched)
        if number != signal.SIGCHLD:
            asked.append(number)
            is_patient = len(asked) < _MOST_STOPS
            # never SIGTERM: Ray's handler would abort the launcher
            os.kill(launcher, signal.SIGINT if is_patient else signal.SIGKILL)
            continue
        pid = -1
        while pid:  # adopted orphans are reaped here, too
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == launcher:
                return _exit_code(status, asked)


def _exit_code(status: int, asked: list[int]) -> int:
    code = os.waitstatus_to_exitcode(status)
    if code == 128 + signal.SIGINT and asked:  # see `_stop`
        return 128 + asked[0]
    if code < 0:
        print(f"the launcher was killed by signal {-code}", file=sys.stderr, flush=True)
        return 128 - code
    return code


def _launch(scratch: Path) -> None:
    """Run the launcher in the forked child. Only the front receives stop signals; it sends the
    launcher a SIGINT. Until the launcher's event loop handles SIGINT, `_stop` does."""
    for number in _STOPS:
        signal.signal(number, _do_nothing)
    signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
    from twolane.deploy.cli.up_command import up

    up(prog_name="twolane up", obj=scratch)


def _stop(number: int, frame: FrameType | None) -> None:
    """Exit with 128 + the signal, as shells do. No process has been started yet. Threads may be
    loading a model; they are not waited for."""
    print("stopped", file=sys.stderr, flush=True)
    os._exit(128 + number)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """A handler, because SIG_IGN would be inherited by the processes that the launcher starts."""


if __name__ == "__main__":
    main()
