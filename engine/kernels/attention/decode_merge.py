"""Merges the partial answers of a row whose keys were split.

Bytes: each partial answer and its log-sum-exp once, in float32.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import triton
import triton.language as tl


@triton.jit
def merge_items(
    partial_out,
    partial_lse,
    out,
    first,
    n,
    head,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Weight a row's partial answers by their log-sum-exp, in the order of the items.

    The reads bypass the L1 cache: other programs have just written this data.
    """
    nth = tl.arange(0, AT_ONCE)
    query = tl.arange(0, GROUP_PAD)
    dim = tl.arange(0, DIM_PAD)
    heads = head * GROUP + query
    best = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PAD], tl.float32)
    answer = tl.zeros([GROUP_PAD, DIM_PAD], tl.float32)
    for j in range(0, n, AT_ONCE):
        keep = (j + nth < n)[:, None] & (query < GROUP)[None, :]
        at = (first + j + nth)[:, None] * (KV_HEADS * GROUP) + heads[None, :]
        lse = tl.load(partial_lse + at, mask=keep, other=float("-inf"), cache_modifier=".cg")
        parts = tl.load(
            partial_out + at.to(tl.int64)[:, :, None] * HEAD_DIM + dim[None, None, :],
            mask=keep[:, :, None] & (dim < HEAD_DIM)[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        higher = tl.maximum(best, tl.max(lse, 0))
        level = tl.where(query < GROUP, higher, 0.0)
        weight = tl.exp2(lse - level[None, :])
        shrink = tl.exp2(best - level)
        total = total * shrink + tl.sum(weight, 0)
        answer = answer * shrink[:, None] + tl.sum(parts * weight[:, :, None], 0)
        best = higher
    answer = answer / tl.where(query < GROUP, total, 1.0)[:, None]
    keep = (query < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
    tl.store(out + heads[:, None] * HEAD_DIM + dim[None, :], answer, mask=keep)
