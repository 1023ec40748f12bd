"""What a worker's engine can make of its pages for receivers of another KV dtype."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from twolane.kvtransfer.layouts.sources import Convert, MakeConvert
from twolane.layout import UNQUANTISED_DTYPES, Layout, parse_layout


def page_converters_of(layout: str) -> Mapping[str, MakeConvert]:
    """By the dtype that they make, out of pages of that layout."""
    is_unquantised = parse_layout(layout).dtype in UNQUANTISED_DTYPES
    return {"float8_e4m3fn": _to_fp8} if is_unquantised else {}


def _to_fp8(source: Layout, target: Layout) -> Convert:
    from twolane.engine.cpu.fp8_pages import quantise_pages  # torch: a fake engine does without

    return partial(
        quantise_pages,
        dtype=source.dtype,
        kv_heads=target.kv_heads,
        page_tokens=target.page_tokens,
        head_dim=target.head_dim,
    )
