"""Folders that cannot be looked at."""

from __future__ import annotations

import errno
import os
from typing import Any, NoReturn

import pytest


def hide_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing any folder raises PermissionError. `Path.glob` finds nothing then, in any Python."""

    def hidden(*args: Any) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "scandir", hidden)
    monkeypatch.setattr(os, "listdir", hidden)
