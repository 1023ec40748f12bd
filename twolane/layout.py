"""The memory layout of a page, and the layouts between which pages can move.

page = [layers, 2 (keys, values), kv_heads, page_tokens, head_dim] of dtype, contiguous;
in float8_e4m3fn the values are transposed, [head_dim, page_tokens], and the keys and the values of
each head are each followed by [page_tokens] float32 scales

A side (a worker) with several ranks has such a page on each rank, with that rank's heads. Page p of
the side is the concatenation, in rank order, of page p of every rank; each rank's part is in its
own memory. If a model has fewer heads than there are ranks, several ranks hold the same head.

Workers negotiate with layouts, and routers decide with them which workers can be paired.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields
from functools import lru_cache

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "uint8": 1}
UNQUANTISED_DTYPES = frozenset({"float32", "bfloat16", "float16"})
SCALE_BYTES = {"float8_e4m3fn": 4}  # per token and head


class LayoutError(ValueError):
    """The text is not a layout. `field` is the first field that is missing, unknown or invalid."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"layout field {field!r}: {message}")
        self.field = field


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a side's pages."""

    ranks: int
    dtype: str
    page_tokens: int
    layers: int
    kv_heads: int  # of each rank
    head_dim: int
    whole_kv_heads: int  # of the model

    @property
    def plane_bytes(self) -> int:
        """Bytes of one head's keys, or of its values, in one layer of a page, scales included."""
        token_bytes = self.head_dim * DTYPE_BYTES[self.dtype] + SCALE_BYTES.get(self.dtype, 0)
        return self.page_tokens * token_bytes

    @property
    def rank_page_bytes(self) -> int:
        """Bytes of the part of a page that one rank holds."""
        return self.layers * 2 * self.kv_heads * self.plane_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of a page on all ranks, which is transferred as one."""
        return self.ranks * self.rank_page_bytes

    def to_json(self) -> str:
        """Canonical JSON: equal layouts give equal texts. `ranks` is left out if it is 1, and
        `whole_kv_heads` if no ranks share heads."""
        facts = asdict(self)
        if self.ranks == 1:
            del facts["ranks"]
        if self.whole_kv_heads == self.ranks * self.kv_heads:
            del facts["whole_kv_heads"]
        return json.dumps(facts, sort_keys=True, separators=(",", ":"))


def parse_layout(text: str) -> Layout:
    """Parse the text that `to_json` returns. Raises `LayoutError`."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:  # also for too many digits or brackets
        raise LayoutError("layout", f"not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise LayoutError("layout", "not an object")
    raw = {"ranks": 1, **raw}
    if "whole_kv_heads" not in raw:
        whole = _product(raw["ranks"], raw.get("kv_heads"))
        raw = {**raw, "whole_kv_heads": whole}
    names = [field.name for field in fields(Layout)]
    for name in names:
        if name not in raw:
            raise LayoutError(name, "missing")
    for name in raw:
        if name not in names:
            raise LayoutError(name, "unknown")
    if not isinstance(raw["dtype"], str) or raw["dtype"] not in DTYPE_BYTES:
        raise LayoutError("dtype", f"{raw['dtype']!r} is not one of {', '.join(DTYPE_BYTES)}")
    for name in (name for name in names if name != "dtype"):
        if type(raw[name]) is not int or not 1 <= raw[name] <= 1 << 20:
            raise LayoutError(name, f"{raw[name]!r} is not a positive integer")
    layout = Layout(**raw)
    whole, ranks = layout.whole_kv_heads, layout.ranks
    divides = whole % ranks == 0 or ranks % whole == 0
    if not divides or layout.kv_heads != max(1, whole // ranks):
        raise LayoutError("kv_heads", f"{layout.kv_heads} on each of {ranks} ranks, {whole} in all")
    return layout


def mismatch(source: Layout, target: Layout, makes: Collection[str]) -> str | None:
    """The first field that prevents converting pages of `source` into pages of `target`; None if
    they can be converted.

    `makes` are the dtypes into which the sender can convert its pages, including its own. A sender
    that cannot convert transfers pages only between equal layouts.
    """
    if source == target:
        return None
    # Of the model: no conversion can change them.
    for name in ("layers", "head_dim", "whole_kv_heads"):
        if getattr(source, name) != getattr(target, name):
            return "kv_heads" if name == "whole_kv_heads" else name
    if source.dtype != target.dtype and target.dtype not in makes:
        return "dtype"
    for name in ("ranks", "page_tokens"):
        if getattr(source, name) != getattr(target, name) and not makes:
            return name
    return None


@lru_cache(maxsize=4096)
def can_feed(source: str, target: str, makes: tuple[str, ...]) -> bool:
    """Whether a sender with layout `source` can send to a receiver with layout `target`, both JSON.

    For routers. An empty or unreadable layout does not rule a pair out: the two workers check
    again.
    """
    try:
        return mismatch(parse_layout(source), parse_layout(target), makes) is None
    except LayoutError:
        return True


def _product(*factors: object) -> object:
    """The product; 1 if a factor is not an int: the caller then refuses that field by its name."""
    whole = 1
    for factor in factors:
        if type(factor) is not int:
            return 1
        whole *= factor
    return whole
