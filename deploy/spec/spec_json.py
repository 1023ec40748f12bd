"""Converts frozen dataclasses to JSON and back: what processes tell each other and leave on disk.

Who reads may be of an earlier version than who wrote. So keys that the reader does not have are
ignored, with a line in its log; and a key that is new has a default, which counts where it is
missing. Files that people write are not read here, and strictly (`twolane.deploy.spec.topology`).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import types
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

SpecT = TypeVar("SpecT")

log = logging.getLogger(__name__)


def to_json(spec: Any) -> str:
    """The spec as one line of JSON."""
    return json.dumps(dataclasses.asdict(spec), default=str)  # paths


def from_json(kind: type[SpecT], text: str) -> SpecT:
    """Parse a spec. Raises ValueError for invalid JSON, missing keys, and wrong types."""
    return from_value(kind, json.loads(text))


def from_value(kind: type[SpecT], value: Any) -> SpecT:
    """As `from_json`, of JSON that is parsed already."""
    spec: SpecT = _build(kind, value, kind.__name__)
    return spec


def said(spec: Any) -> Any:
    """What of the spec differs from defaults, as plain values: the same for a version in which the
    spec has more keys."""
    if dataclasses.is_dataclass(spec) and not isinstance(spec, type):
        values = ((field, getattr(spec, field.name)) for field in dataclasses.fields(spec))
        return {field.name: said(value) for field, value in values if value != _default(field)}
    if isinstance(spec, tuple):
        return [said(part) for part in spec]
    return str(spec) if isinstance(spec, Path) else spec


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _build(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _build_dataclass(hint, value, where)
    if get_origin(hint) is types.UnionType:
        if value is None:
            return None
        (hint,) = (arm for arm in get_args(hint) if arm is not types.NoneType)
        return _build(hint, value, where)
    if get_origin(hint) is tuple:
        return _build_tuple(get_args(hint), value, where)
    if hint is float and isinstance(value, int):
        value = float(value)
    if hint is Path and isinstance(value, str):
        value = Path(value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        value = hint(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ValueError(f"{where} is {value!r}; it must be of type {hint.__name__}")
    return value


def _build_tuple(hints: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    """Of any number of equal parts, or of as many as there are hints."""
    if not isinstance(value, list):
        raise ValueError(f"{where} is {value!r}; it must be a list")
    if hints[-1] is Ellipsis:
        hints = hints[:1] * len(value)
    if len(hints) != len(value):
        raise ValueError(f"{where} has {len(value)} parts; it must have {len(hints)}")
    parts = enumerate(zip(hints, value, strict=True))
    return tuple(_build(hint, part, f"{where}[{i}]") for i, (hint, part) in parts)


def _build_dataclass(kind: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {value!r}; it must be an object")
    hints = get_type_hints(kind)
    known = {key: part for key, part in value.items() if key in hints}
    if len(known) < len(value):
        _tell_unknown(kind.__name__, ", ".join(sorted(value.keys() - hints.keys())))
    parts = {key: _build(hints[key], part, f"{where}.{key}") for key, part in known.items()}
    try:
        return kind(**parts)
    except TypeError as error:  # a field without default is missing
        raise ValueError(f"{where}: {error}") from error


@cache
def _tell_unknown(kind: str, keys: str) -> None:
    """Once, as some files are read again and again."""
    log.warning("%s: ignoring keys of another version: %s", kind, keys)
