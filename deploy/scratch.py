"""Temporary folders named after the pid of their process: `twolane-<pid>-…`.

A SIGKILL leaves them behind; the next start removes those of the dead.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

_NAME = re.compile(r"twolane-(\d+)-\w+")


def make_scratch() -> Path:
    """A new folder of this process. The caller removes it."""
    return Path(tempfile.mkdtemp(prefix=f"twolane-{os.getpid()}-"))


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
