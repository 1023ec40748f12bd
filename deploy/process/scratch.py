"""Temporary folders named after the pid of their process: `twolane-<pid>-…`.

A SIGKILL leaves them behind; the next start removes those of the dead.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

CRASHED = "crashed"  # a file in it: some process of the cluster has died
LAST_WORDS = "last_words"  # a file in it: what the front prints when all have ended
_KEPT = "twolane-logs-"
_MOST_KEPT = 5
_NAME = re.compile(r"twolane-(\d+)-\w+")


def make_scratch() -> Path:
    """A new folder of this process. The caller removes it."""
    return Path(tempfile.mkdtemp(prefix=f"twolane-{os.getpid()}-"))


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
    for path in Path(tempfile.gettempdir()).glob("twolane-*"):
        name = _NAME.fullmatch(path.name)
        if name is not None and not _is_running(int(name[1])):
            shutil.rmtree(path, ignore_errors=True)  # another start may be removing it, too


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's
    return True
