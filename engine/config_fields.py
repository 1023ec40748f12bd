"""Typed fields of a config.json. Errors are CheckpointErrors that name field and value."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from twolane.engine.errors import CheckpointError
from twolane.lfs import is_lfs_pointer, lfs_complaint

Raw = Mapping[str, Any]


def read_config(path: Path) -> dict[str, Any]:
    """The object of a JSON file."""
    try:
        if is_lfs_pointer(path):
            raise CheckpointError(lfs_complaint(path))
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return content


def size_of(raw: Raw, key: str, default: int | None = None) -> int:
    """A positive integer; `default` if it is absent or null."""
    value = raw.get(key)
    value = default if value is None else value
    if type(value) is not int or value < 1:
        refuse(key, value, "a positive integer")
    return value


def count_of(raw: Raw, key: str, default: int) -> int:
    """An integer from 0; `default` if it is absent, 0 if it is null."""
    value = raw.get(key, default)
    value = 0 if value is None else value
    if type(value) is not int or value < 0:
        refuse(key, value, "an integer from 0, or null")
    return value


def number_of(raw: Raw, key: str, default: float | None = None) -> float:
    """A positive finite number; `default` if it is absent."""
    value = raw.get(key, default)
    if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:
        refuse(key, value, "a positive number")
    return float(value)


def flag_of(raw: Raw, key: str) -> bool:
    """False if it is absent or null."""
    value = raw.get(key)
    if value is not None and not isinstance(value, bool):
        refuse(key, value, "true or false")
    return bool(value)


def names_of(raw: Raw, key: str) -> list[str] | None:
    """None if it is absent or null."""
    value = raw.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        refuse(key, value, "a list of names")
    return value


def object_of(raw: Raw, key: str) -> dict[str, Any]:
    """Empty if it is absent or null."""
    value = raw.get(key)
    if value is not None and not isinstance(value, dict):
        refuse(key, value, "an object")
    return dict(value or {})


def token_ids_of(raw: Raw, key: str, vocab_size: int, file: str) -> tuple[int, ...]:
    """One id, or a list; returned sorted. Empty if it is absent or null."""
    value = raw.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token) is int and 0 <= token < vocab_size for token in ids):
        refuse(key, value, f"token ids, 0 to {vocab_size - 1}", file)
    return tuple(sorted({*ids}))


def refuse(key: str, value: object, wanted: str, file: str = "config.json") -> NoReturn:
    raise CheckpointError(f"{file}: {key} is {value!r}; it must be {wanted}")
