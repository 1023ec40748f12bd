"""How a pool's bytes are laid out, as canonical JSON: two sides compare and negotiate it."""

from __future__ import annotations

import json


def describe_layout(
    *,
    dtype: str,
    page_tokens: int,
    layers: int,
    kv_heads: int,
    head_dim: int,
    ranks: int = 1,
    whole_kv_heads: int = 0,
) -> str:
    """The page is `[layers, 2 (keys, values), kv_heads, page_tokens, head_dim]` of dtype, C order.

    With dtype float8_e4m3fn values are turned, `[head_dim, page_tokens]`, and behind the keys or
    values of each head come their `[page_tokens]` float32 scales.

    With several ranks, each has a pool of such pages: `kv_heads` are one rank's. Which heads these
    are follows from the number of ranks and `whole_kv_heads`, the model's (0: as many as the ranks
    have together); so equal texts mean that rank i of one side can take the pages of rank i of the
    other.

    Canonical: equal facts give equal text (sorted keys, no spaces; `ranks` only where several,
    `whole_kv_heads` only where ranks share heads).
    """
    facts: dict[str, str | int] = {
        "dtype": dtype,
        "head_dim": head_dim,
        "kv_heads": kv_heads,
        "layers": layers,
        "page_tokens": page_tokens,
    }
    if ranks > 1:
        facts["ranks"] = ranks
    if whole_kv_heads not in (0, ranks * kv_heads):
        facts["whole_kv_heads"] = whole_kv_heads
    return json.dumps(facts, sort_keys=True, separators=(",", ":"))
