"""Prefill attention for Hopper: one producer warp loads, two groups of four warps compute.

Gives the same answer as `prefill_attention`'s general kernel, for 16-bit pools of head_dim 64 or
128, with the same operations; keys and values are read from the L2 cache once per 128 queries.
Idea: FlashAttention-3 (Shah et al., 2024), in Gluon, Triton's lower level, which supports warp
specialisation and asynchronous products.

    producer warp    | keys of pair 0, values of pair 0 | keys of pair 1 ...  as buffers become free
    tensor cores     | scores of pair i | answer += weights of i - 1 | the same of the other group |
    other units                         | softmax of pair i ................................. |

Pages are processed in pairs, which halves the bookkeeping of the softmax; pair i of a row is its
pages 2 i and 2 i + 1 in every chunk, and a page that a query does not see gets a weight of exactly
0. The two groups hold 64 queries each and issue products alternately, so that one group's softmax
overlaps the other's products. Queries stay in registers: products over 64 keys would exceed the
bandwidth of shared memory. Programs are persistent and process one tile and head after the other;
the producer warp already loads the next tile while the groups finish this one.

There is no interpreter for Gluon: without a card only the build is tested, and the general kernel
is interpreted instead.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from twolane.engine.kernels.attention.prefill_fetch import fetch, task
from twolane.engine.kernels.gluon_names import barrier


@gluon.jit
def _seen(
    scores, key, position, window,
    PAGE: gl.constexpr, WINDOWED: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """`scores` of the page whose first key has the position `key`, -inf for unseen keys."""
    at = key + gl.arange(0, PAGE, layout=gl.SliceLayout(0, LAYOUT))
    keep = at[None, :] <= position[:, None]
    if WINDOWED:
        keep = keep & (at[None, :] > position[:, None] - window)
    return gl.where(keep, scores, float("-inf"))


@gluon.jit
def _packed(weights, dtype: gl.constexpr, LAYOUT: gl.constexpr):
    """Rounded to 16 bits, as the left operand of a product. Uses inline assembly: if values are
    rounded one by one, the compiler swaps the halves with one more instruction per pair."""
    if dtype == gl.bfloat16:
        rounded = gl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [weights],
            dtype=gl.bfloat16, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        rounded = gl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,r,r", [weights],
            dtype=gl.float16, is_pure=True, pack=2,
        )  # fmt: skip
    return gl.convert_layout(rounded, LAYOUT)


@gluon.jit
def _softmax(
    left, right, best, total, key, position, seen_from, seen_end, scale, window,
    PAGE: gl.constexpr, WINDOWED: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """(weights of both pages, shrink, best, total) with the scores of a pair, whose first key has
    the position `key`. All queries of the group see the keys seen_from .. seen_end - 1."""
    if (key < seen_from) | (key + 2 * PAGE > seen_end):
        left = _seen(left, key, position, window, PAGE, WINDOWED, LAYOUT)
        right = _seen(right, key + PAGE, position, window, PAGE, WINDOWED, LAYOUT)
    higher = gl.maximum(best, gl.max(gl.maximum(left, right), 1) * scale)
    level = higher
    if WINDOWED:
        level = gl.where(higher == float("-inf"), 0.0, higher)  # nothing seen yet
    left = gl.exp2(left * scale - level[:, None])
    right = gl.exp2(right * scale - level[:, None])
    shrink = gl.exp2(best - level)
    return left, right, shrink, higher, total * shrink + gl.sum(left + right, 1)


@gluon.jit
def _scores(q, keys, slot, BLOCK: gl.constexpr, PAGE: gl.constexpr, LAYOUT: gl.constexpr):
    """The scores of both pages of a pair: issued, but not waited for."""
    zeros = gl.zeros([BLOCK, PAGE], gl.float32, LAYOUT)
    left = warpgroup_mma(
        q, keys.index(2 * slot).permute((1, 0)), zeros, use_acc=False, is_async=True
    )
    right = warpgroup_mma(
        q, keys.index(2 * slot + 1).permute((1, 0)), zeros, use_acc=False, is_async=True
    )
    return left, right


@gluon.jit
def _clean(page, n_valid, PAGE: gl.constexpr, LAYOUT: gl.constexpr):
    """Zero the slots past the row's end, which may contain NaN: 0 * NaN would reach the answer.
    Both groups may do this to one page, even while the other multiplies it: valid slots keep their
    content."""
    if n_valid < PAGE:
        place = gl.arange(0, PAGE, layout=gl.SliceLayout(1, LAYOUT))
        held = page.load(LAYOUT)
        page.store(gl.where((place < n_valid)[:, None], held, gl.zeros_like(held)))
        fence_async_shared()
        barrier()


@gluon.jit
def _attend(
    group, turn, out, first_token, end_token, first_position, first, end, ahead,
    asked, order, ring, query_head, scale, window,
    HEADS: gl.constexpr, PAGE: gl.constexpr, DIM: gl.constexpr, BLOCK: gl.constexpr,
    WINDOWED: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """One group's 64 queries against the pairs of pages that they see; pair i is the (i + ahead)-th
    loaded."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, PAGE, 16])
    ANSWER: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, DIM, 16])
    QUERIES: gl.constexpr = gl.DotOperandLayout(0, SCORES, 2)
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, ANSWER, 2)
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [32 // (DIM // 8), DIM // 8], [WARPS, 1], [1, 0])
    tile, tile_full, tile_free = asked
    keys, values, key_full, key_free, value_full, value_free = ring
    keys_end = first_position + end_token - first_token  # for the tile's last query
    first_token += group * BLOCK
    first_position += group * BLOCK
    begin = first // 2
    pairs_end = begin
    mbarrier.wait(tile_full, turn & 1)
    if first_token >= end_token:
        mbarrier.arrive(tile_free)
    else:
        own_end = gl.cdiv(gl.minimum(first_position + BLOCK, keys_end), PAGE)
        pairs_end = gl.cdiv(own_end, 2)
        seen_end = first_position + 1
        seen_from = 0
        if WINDOWED:
            seen_from = first_position + BLOCK - window

        q = tile.index(group).load(QUERIES)
        mbarrier.arrive(tile_free)
        position = first_position + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, SCORES))
        best = gl.full([BLOCK], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
        total = gl.zeros([BLOCK], gl.float32, gl.SliceLayout(1, SCORES))
        answer = gl.zeros([BLOCK, DIM], gl.float32, ANSWER)

        nth = begin + ahead
        slot = nth % STAGES
        mbarrier.wait(key_full.index(slot), (nth // STAGES) & 1)
        mbarrier.wait(order.index(group), (nth & 1) ^ (1 - group))
        left, right = _scores(q, keys, slot, BLOCK, PAGE, SCORES)
        mbarrier.arrive(order.index(1 - group))
        left, right = warpgroup_mma_wait(0, deps=[left, right])
        mbarrier.arrive(key_free.index(slot))
        left, right, shrink, best, total = _softmax(
            left, right, best, total, begin * 2 * PAGE, position, seen_from, seen_end,
            scale, window, PAGE, WINDOWED, SCORES,
        )  # fmt: skip
        left = _packed(left, q.dtype, WEIGHTS)
        right = _packed(right, q.dtype, WEIGHTS)
        if begin + 1 < pairs_end:
            mbarrier.wait(key_full.index((nth + 1) % STAGES), ((nth + 1) // STAGES) & 1)
        for i in range(begin + 1, pairs_end):  # left and right are the weights of pair i - 1
            before = slot
            parity = (nth // STAGES) & 1
            nth = i + ahead
            slot = nth % STAGES
            mbarrier.wait(order.index(group), (nth & 1) ^ (1 - group))
            next_left, next_right = _scores(q, keys, slot, BLOCK, PAGE, SCORES)
            answer = answer * gl.convert_layout(shrink, gl.SliceLayout(1, ANSWER))[:, None]
            mbarrier.wait(value_full.index(before), parity)
            answer = warpgroup_mma(left, values.index(2 * before), answer, is_async=True)
            answer = warpgroup_mma(right, values.index(2 * before + 1), answer, is_async=True)
            mbarrier.arrive(order.index(1 - group))
            next_left, next_right = warpgroup_mma_wait(2, deps=[next_left, next_right])
            mbarrier.arrive(key_free.index(slot))
            next_left, next_right, shrink, best, total = _softmax(
                next_left, next_right, best, total, i * 2 * PAGE, position, seen_from, seen_end,
                scale, window, PAGE, WINDOWED, SCORES,
            )  # fmt: skip
            # This wait is here because the assembler moves no arithmetic past it: without it, most
            # of the softmax would come after the wait for the answer.
            if i + 1 < pairs_end:
                mbarrier.wait(key_full.index((nth + 1) % STAGES), ((nth + 1) // STAGES) & 1)
            answer, left, right = warpgroup_mma_wait(0, deps=[answer, left, right])
            mbarrier.arrive(value_free.index(before))
            left = _packed(next_left, q.dtype, WEIGHTS)
            right = _packed(next_right, q.dtype, WEIGHTS)
        answer = answer * gl.convert_layout(shrink, gl.SliceLayout(1, ANSWER))[:, None]
        mbarrier.wait(value_full.index(slot), (nth // STAGES) & 1)
        page = values.index(2 * slot)
        _clean(page, keys_end - gl.maximum(2 * pairs_end - 2, first) * PAGE, PAGE, WIDE)
        answer = warpgroup_mma(left, page, answer)
        if own_end % 2 == 0:
            page = values.index(2 * slot + 1)
            _clean(page, keys_end - (own_end - 1) * PAGE, PAGE, WIDE)
            answer = warpgroup_mma(right, page, answer)
        mbarrier.arrive(value_free.index(slot))
        share = 1.0 / gl.where(total > 0, total, 1.0)  # 0 in rows past the end
        answer = answer * gl.convert_layout(share, gl.SliceLayout(1, ANSWER))[:, None]
        token = first_token + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, WIDE))
        dim = gl.arange(0, DIM, layout=gl.SliceLayout(0, WIDE))
        mine = (token < end_token)[:, None] & (dim < DIM)[None, :]
        target = out + token.to(gl.int64)[:, None] * (HEADS * DIM) + query_head * DIM + dim[None, :]
        gl.store(target, gl.convert_layout(answer.to(out.dtype.element_ty), WIDE), mask=mine)
    # Pairs that only the other group sees: release each when it is loaded.
    for i in range(pairs_end, gl.cdiv(end, 2)):
        nth = i + ahead
        slot = nth % STAGES
        mbarrier.wait(order.index(group), (nth & 1) ^ (1 - group))
        mbarrier.arrive(order.index(1 - group))
        mbarrier.wait(key_full.index(slot), (nth // STAGES) & 1)
        mbarrier.arrive(key_free.index(slot))
        mbarrier.wait(value_full.index(slot), (nth // STAGES) & 1)
        mbarrier.arrive(value_free.index(slot))


@gluon.jit
def _attend_all(
    group, out, n_tasks, tiles, asked, order, ring, scale, window,
    HEADS: gl.constexpr, PAGE: gl.constexpr, DIM: gl.constexpr, BLOCK: gl.constexpr,
    RECORD: gl.constexpr, WINDOWED: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    done = 0
    for turn in range(gl.cdiv(n_tasks, gl.num_programs(0))):
        there, query_head, _, first_token, end_token, first_position, first, end = task(
            turn, n_tasks, tiles, window, HEADS, PAGE, BLOCK, RECORD, WINDOWED
        )
        if there:
            _attend(
                group, turn, out, first_token, end_token, first_position, first, end,
                done - first // 2, asked, order, ring, query_head, scale, window,
                HEADS, PAGE, DIM, BLOCK, WINDOWED, STAGES, WARPS,
            )  # fmt: skip
            done += gl.cdiv(end, 2) - first // 2


@gluon.jit(do_not_specialize=["n_tasks", "layer", "window", "table_stride"])
def overlapped_kernel(
    queries,
    out,
    pages,
    tables,
    tiles,
    n_tasks,
    layer,
    scale,
    window,
    table_stride,
    LAYERS: gl.constexpr,
    KV_HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    PAGE: gl.constexpr,
    DIM: gl.constexpr,
    BLOCK: gl.constexpr,
    RECORD: gl.constexpr,
    WINDOWED: gl.constexpr,
    STAGES: gl.constexpr,
    WARPS: gl.constexpr,
    REGISTERS: gl.constexpr,
    FETCH_REGISTERS: gl.constexpr,
):
    LAYOUT: gl.constexpr = mbarrier.MBarrierLayout()
    keys = gl.allocate_shared_memory(pages.dtype, [2 * STAGES, PAGE, DIM], pages.layout)
    values = gl.allocate_shared_memory(pages.dtype, [2 * STAGES, PAGE, DIM], pages.layout)
    key_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], LAYOUT)
    key_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], LAYOUT)
    value_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], LAYOUT)
    value_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], LAYOUT)
    tile = gl.allocate_shared_memory(queries.dtype, [2, BLOCK, DIM], queries.layout)
    tile_full = gl.allocate_shared_memory(gl.int64, [1], LAYOUT)
    tile_free = gl.allocate_shared_memory(gl.int64, [1], LAYOUT)
    order = gl.allocate_shared_memory(gl.int64, [2, 1], LAYOUT)  # which group may issue next
    mbarrier.init(tile_full, count=1)
    mbarrier.init(tile_free, count=2)
    for group in gl.static_range(2):
        mbarrier.init(order.index(group), count=1)
    for s in gl.static_range(STAGES):
        mbarrier.init(key_full.index(s), count=1)
        mbarrier.init(key_free.index(s), count=2)
        mbarrier.init(value_full.index(s), count=1)
        mbarrier.init(value_free.index(s), count=2)
    fence_async_shared()
    asked = (tile, tile_full, tile_free)
    ring = (keys, values, key_full, key_free, value_full, value_free)
    gl.warp_specialize(
        [
            (_attend_all, (
                0, out, n_tasks, tiles, asked, order, ring, scale, window,
                KV_HEADS * GROUP, PAGE, DIM, BLOCK, RECORD, WINDOWED, STAGES, WARPS,
            )),
            (_attend_all, (
                1, out, n_tasks, tiles, asked, order, ring, scale, window,
                KV_HEADS * GROUP, PAGE, DIM, BLOCK, RECORD, WINDOWED, STAGES, WARPS,
            )),
            (fetch, (
                n_tasks, tiles, tables, table_stride, queries, pages, asked, ring, layer, window,
                LAYERS, KV_HEADS, GROUP, PAGE, BLOCK, RECORD, WINDOWED, STAGES,
            )),
        ],
        [WARPS, 1],
        [REGISTERS, FETCH_REGISTERS],
    )  # fmt: skip
