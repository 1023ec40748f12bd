"""Converts frozen specs to JSON and back. Reading refuses keys that the dataclass does not have."""

from __future__ import annotations

import dataclasses
import json
import types
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

SpecT = TypeVar("SpecT")


def to_json(spec: Any) -> str:
    """The spec as one line of JSON."""
    return json.dumps(dataclasses.asdict(spec), default=str)  # paths


def from_json(kind: type[SpecT], text: str) -> SpecT:
    """Parse a spec. Raises ValueError for invalid JSON, unknown or missing keys, and wrong
    types."""
    spec: SpecT = _build(kind, json.loads(text), kind.__name__)
    return spec


def _build(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _build_dataclass(hint, value, where)
    if get_origin(hint) is types.UnionType:
        if value is None:
            return None
        (hint,) = (arm for arm in get_args(hint) if arm is not types.NoneType)
        return _build(hint, value, where)
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where} is {value!r}; it must be a list")
        item = get_args(hint)[0]
        return tuple(_build(item, part, f"{where}[{i}]") for i, part in enumerate(value))
    if hint is float and isinstance(value, int):
        value = float(value)
    if hint is Path and isinstance(value, str):
        value = Path(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ValueError(f"{where} is {value!r}; it must be of type {hint.__name__}")
    return value


def _build_dataclass(kind: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {value!r}; it must be an object")
    hints = get_type_hints(kind)
    unknown = value.keys() - hints.keys()
    if unknown:
        raise ValueError(f"{where} has unknown keys: {', '.join(sorted(unknown))}")
    parts = {key: _build(hints[key], part, f"{where}.{key}") for key, part in value.items()}
    try:
        return kind(**parts)
    except TypeError as error:  # a field without default is missing
        raise ValueError(f"{where}: {error}") from error
