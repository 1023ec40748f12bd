"""`python -m twolane.deploy.up`, which `twolane up` becomes: a front process around the launcher.

    front ──fork──▶ launcher ──▶ Ray, router, workers        in a session of their own
      │                ▲
      └──── SIGINT ────┘   for every SIGINT, SIGTERM, SIGHUP to the front; the third is a SIGKILL

A Ctrl-C reaches the whole group of a terminal, a SIGTERM often does: Ray's daemons would die of it
before the answers have ended, and a Ray that is just starting would hang or abort its process. So
the front alone hears signals. However the launcher ends, the front kills whatever is left of it and
removes its temporary folder. Imports little: the launcher is forked from it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType

from twolane.deploy.process.descriptors import TooFewDescriptorsError, raise_limit
from twolane.deploy.process.parent_death import (
    adopt_orphans,
    children,
    die_with_parent,
    end_children,
)
from twolane.deploy.process.scratch import LAST_WORDS, keep_logs, make_scratch, remove_stale_scratch

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WATCHED = (*_STOPS, signal.SIGCHLD)
_MOST_STOPS = 3  # with the last of them patience with the launcher ends


def main() -> None:
    """Run the command in a child, and end as it ends."""
    try:
        raise_limit()
    except TooFewDescriptorsError as error:
        raise SystemExit(str(error)) from None
    watched = {*_WATCHED}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup
        watched.discard(signal.SIGHUP)
    signal.signal(signal.SIGCHLD, _do_nothing)  # an ignored one might never be told
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    adopt_orphans()
    not_ours = {*children()}  # of a shell that became us by `exec`
    remove_stale_scratch()
    scratch = make_scratch()
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
            with contextlib.suppress(BrokenPipeError):  # whoever reads may be gone
                os.write(sys.stdout.fileno(), (scratch / LAST_WORDS).read_bytes())
        kept = keep_logs(scratch)
        if kept is not None:
            print(f"a process had died: the logs are kept in {kept}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    raise SystemExit(code)


def _wait(launcher: int, watched: set[signal.Signals]) -> int:
    """Pass stops on until it has ended. Returns its exit code; 128 + the signal that killed it."""
    asked: list[int] = []
    while True:
        number = signal.sigwait(watched)
        if number != signal.SIGCHLD:
            asked.append(number)
            is_patient = len(asked) < _MOST_STOPS
            # never SIGTERM: Ray would make it abort
            os.kill(launcher, signal.SIGINT if is_patient else signal.SIGKILL)
            continue
        pid = -1
        while pid:  # orphans end here, too
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
    """The front alone is asked to stop, and asks us by SIGINT. Until our event loop takes that over
    it ends the launcher here."""
    for number in _STOPS:
        signal.signal(number, _do_nothing)
    signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
    from twolane.deploy.cli.up_command import up

    up(prog_name="twolane up", obj=scratch)


def _stop(number: int, frame: FrameType | None) -> None:
    """Nothing has been started yet, but threads may be loading a model: they are not waited for. As
    a shell has it, the exit code is 128 + the signal."""
    print("stopped", file=sys.stderr, flush=True)
    os._exit(128 + number)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Unlike SIG_IGN this is not inherited by what the launcher starts."""


if __name__ == "__main__":
    main()
