"""Detects git-lfs pointers: small files in place of large ones that git has not fetched."""

from __future__ import annotations

from pathlib import Path

_BEGINS = b"version https://git-lfs"


def is_lfs_pointer(path: Path) -> bool:
    """Whether the file is a git-lfs pointer. Raises OSError."""
    with path.open("rb") as file:
        return file.read(len(_BEGINS)) == _BEGINS


def lfs_complaint(path: Path) -> str:
    return f"{path} is a git-lfs pointer, not the file itself: run `git lfs pull` there"
