"""Pages of any layout by hand: slow and plain, for tests to compare with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from twolane.layout import DTYPE_BYTES, SCALE_BYTES, Layout

Bytes = npt.NDArray[np.uint8]


def layout(**changed: int | str) -> Layout:
    """One rank, unless told otherwise; `whole_kv_heads` rules."""
    facts: dict[str, int | str] = {
        "ranks": 1, "dtype": "bfloat16", "page_tokens": 16, "layers": 2, "head_dim": 8,
        "whole_kv_heads": 2, **changed,
    }  # fmt: skip
    facts["kv_heads"] = max(1, int(facts["whole_kv_heads"]) // int(facts["ranks"]))
    return Layout(**facts)  # type: ignore[arg-type]


def heads_of(side: Layout, rank: int) -> range:
    first = rank * side.whole_kv_heads // side.ranks
    return range(first, first + side.kv_heads)


def cache(side: Layout, n_tokens: int, seed: int) -> tuple[Bytes, Bytes]:
    """A row's values [tokens, layers, 2, heads, bytes] and scales [..., 4], as bytes."""
    rng = np.random.default_rng(seed)
    shape = (n_tokens, side.layers, 2, side.whole_kv_heads)
    size = side.head_dim * DTYPE_BYTES[side.dtype]
    values = rng.integers(1, 256, (*shape, size), dtype=np.uint8)
    scales = rng.integers(1, 256, (*shape, SCALE_BYTES.get(side.dtype, 0)), dtype=np.uint8)
    return values, scales


def laid_out(side: Layout, rank: int, row: tuple[Bytes, Bytes]) -> Bytes:
    """The pages of that rank, [pages, its bytes], one position after the other."""
    values, scales = row
    n_tokens, n_pages = len(values), -(-len(values) // side.page_tokens)
    pages = np.zeros((n_pages, side.rank_page_bytes), dtype=np.uint8)
    turns = side.dtype in SCALE_BYTES
    size, item = values.shape[-1], DTYPE_BYTES[side.dtype]
    for token in range(n_tokens):
        page, t = divmod(token, side.page_tokens)
        for layer in range(side.layers):
            for kv in range(2):
                for i, head in enumerate(heads_of(side, rank)):
                    plane = ((layer * 2 + kv) * side.kv_heads + i) * side.plane_bytes
                    held = values[token, layer, kv, head]
                    if turns and kv:
                        pages[page, plane + t + np.arange(size) * side.page_tokens] = held
                    else:
                        pages[page, plane + t * size : plane + (t + 1) * size] = held
                    at = plane + side.page_tokens * side.head_dim * item + 4 * t
                    pages[page, at : at + scales.shape[-1]] = scales[token, layer, kv, head]
    return pages


def whole_pages(side: Layout, row: tuple[Bytes, Bytes]) -> Bytes:
    """What all ranks have of each page, one behind the other."""
    return np.concatenate([laid_out(side, rank, row) for rank in range(side.ranks)], axis=1)
