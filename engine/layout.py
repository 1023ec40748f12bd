"""How a pool's bytes are laid out, as canonical JSON: two sides compare and negotiate it."""

from __future__ import annotations

import json


def describe_layout(
    *, dtype: str, page_tokens: int, layers: int, kv_heads: int, head_dim: int
) -> str:
    """The page is `[layers, 2 (keys, values), kv_heads, page_tokens, head_dim]` of dtype, C order.

    With dtype float8_e4m3fn values are turned, `[head_dim, page_tokens]`, and behind the keys or
    values of each head come their `[page_tokens]` float32 scales.

    Canonical: equal facts give equal text (sorted keys, no spaces).
    """
    facts = {
        "dtype": dtype,
        "head_dim": head_dim,
        "kv_heads": kv_heads,
        "layers": layers,
        "page_tokens": page_tokens,
    }
    return json.dumps(facts, sort_keys=True, separators=(",", ":"))
