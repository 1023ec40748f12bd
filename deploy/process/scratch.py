"""Temporary folders named after the pid of their process: `twolane-<pid>-…`.

A SIGKILL leaves them behind; the next start removes those of the dead. A process holds the lock of
its folder for as long as it lives: its pid means nothing to a process of another PID namespace that
sees the same /tmp.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path

from twolane.deploy.errors import StartError

CRASHED = "crashed"  # a file in it: some process of the cluster has died
LAST_WORDS = "last_words"  # a file in it: what the front prints when all have ended
_LOCK = "lock"
_KEPT = "twolane-logs-"
_MOST_KEPT = 5
_NAME = re.compile(r"twolane-(\d+)-\w+")
_held: list[int] = []  # open as long as this process lives


def make_scratch() -> Path:
    """A new folder of this process. The caller removes it. Raises `StartError` where none can be
    made."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=".twolane-"))  # renamed once locked
        lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise StartError(
            f"cannot make a folder for temporary files: {error.strerror or error}; set TMPDIR to a "
            "folder that this user may write to"
        ) from error
    fcntl.flock(lock, fcntl.LOCK_EX)
    _held.append(lock)
    name = folder.name.removeprefix(".twolane-")
    return folder.rename(folder.with_name(f"twolane-{os.getpid()}-{name}"))


def keep_logs(scratch: Path) -> Path | None:
    """Where the logs of a cluster were moved to of which a process has died; None: none has, or its
    logs are elsewhere. Of this user's folders for that the newest stay."""
    logs = sorted(scratch.glob("*.log"))
    if not logs or not (scratch / CRASHED).exists():
        return None
    kept = Path(tempfile.mkdtemp(prefix=_KEPT))
    for log in logs:
        shutil.move(log, kept / log.name)
    ours = [path for path in kept.parent.glob(f"{_KEPT}*") if path.stat().st_uid == os.geteuid()]
    for path in sorted(ours, key=lambda path: path.stat().st_mtime)[:-_MOST_KEPT]:
        shutil.rmtree(path, ignore_errors=True)
    return kept


def remove_stale_scratch() -> None:
    """Remove every folder of ours whose process is gone. Those of other users stay."""
    try:
        parent = Path(tempfile.gettempdir())
    except FileNotFoundError:
        return  # none can be written to: `make_scratch` says so
    for path in parent.glob("twolane-*"):
        name = _NAME.fullmatch(path.name)
        if name is not None and not _is_held(path, int(name[1])):
            shutil.rmtree(path, ignore_errors=True)  # another start may be removing it, too


def _is_held(path: Path, pid: int) -> bool:
    """Whether the process lives whose folder this is."""
    try:
        lock = os.open(path / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return _is_running(pid)  # of a version without locks
    except OSError:
        return True  # another user's
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True
