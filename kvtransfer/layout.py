"""How a page's bytes are laid out. Two sides move pages only between equal layouts.

page = [layers, 2 (keys, values), kv_heads, page_tokens, head_dim] of dtype, one contiguous run;
of float8_e4m3fn each head's keys, and its values, are followed by a float32 scale a token

A side that computes on several ranks has a pool of such pages on each, with that rank's heads: page
p of a request is page p of every rank. Two such sides fit if they have equally many.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "uint8": 1}
SCALE_BYTES = {"float8_e4m3fn": 4}  # a token and head


class LayoutError(ValueError):
    """The text is no layout. `field` names the first field that is missing, unknown or absurd."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"layout field {field!r}: {message}")
        self.field = field


@dataclass(frozen=True, slots=True)
class Layout:
    """One plane of pages: of one rank, where there are several."""

    ranks: int
    dtype: str
    page_tokens: int
    layers: int
    kv_heads: int
    head_dim: int

    @property
    def page_bytes(self) -> int:
        tokens = self.layers * 2 * self.kv_heads * self.page_tokens
        return tokens * (self.head_dim * DTYPE_BYTES[self.dtype] + SCALE_BYTES.get(self.dtype, 0))


def parse_layout(text: str) -> Layout:
    """The layout that a canonical JSON (EngineSpec.layout) describes. Raises `LayoutError`."""
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise LayoutError("layout", f"not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise LayoutError("layout", "not an object")
    raw = {"ranks": 1, **raw}  # told only where there are several
    names = [field.name for field in fields(Layout)]
    for name in names:
        if name not in raw:
            raise LayoutError(name, "missing")
    for name in raw:
        if name not in names:
            raise LayoutError(name, "unknown")
    if raw["dtype"] not in DTYPE_BYTES:
        raise LayoutError("dtype", f"{raw['dtype']!r} is none of {', '.join(DTYPE_BYTES)}")
    for name in (name for name in names if name != "dtype"):
        if type(raw[name]) is not int or not 1 <= raw[name] <= 1 << 20:
            raise LayoutError(name, f"{raw[name]!r} is no positive count")
    return Layout(**raw)


def mismatch(ours: Layout, theirs: Layout) -> str | None:
    """The first field in which two layouts differ."""
    for field in fields(Layout):
        if getattr(ours, field.name) != getattr(theirs, field.name):
            return field.name
    return None
