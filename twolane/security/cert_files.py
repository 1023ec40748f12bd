"""Writes the files of certificates and keys, all or none."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path


class CertsError(Exception):
    """A certificate cannot be made. The text says why, and what to do about it."""


def refuse_existing(paths: Iterable[Path], instead: str) -> None:
    for path in paths:
        if path.exists():
            raise CertsError(f"{path} exists and is not overwritten: {instead}")


def write(contents: Mapping[Path, bytes]) -> None:
    """Create files, all or none; only their owner can read keys. Raises `CertsError` if one exists
    or cannot be written."""
    made: list[Path] = []
    for path, content in contents.items():
        mode = 0o600 if ".key" in path.suffixes else 0o644
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            made.append(path)
            with os.fdopen(fd, "wb") as file:
                file.write(content)
        except OSError as error:
            for each in made:
                each.unlink()
            raise CertsError(f"{path} cannot be written: {error.strerror}") from error


def replace(contents: Mapping[Path, bytes]) -> None:
    """As `write`, but replace existing files, in this order and each atomically: all or none,
    unless a rename fails."""
    drafts = {path.with_name(f".{path.name}.new"): path for path in contents}
    for draft, path in drafts.items():
        if path.is_dir():
            raise CertsError(f"{path} cannot be replaced: it is a directory")
        with suppress(OSError):  # of which `write` tells
            draft.unlink()  # left by a renewal that was interrupted
    write({draft: contents[path] for draft, path in drafts.items()})
    try:
        for draft, path in drafts.items():
            os.replace(draft, path)
    except OSError as error:
        for draft in drafts:
            draft.unlink(missing_ok=True)
        raise CertsError(f"{path} cannot be replaced: {error.strerror}") from error
