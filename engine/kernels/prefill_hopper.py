"""Prefill attention for Hopper: one warp fetches, two groups of four multiply and weigh.

The same answer as `prefill_attention`'s general kernel, for 16-bit pools of head_dim 64 or 128, and
the same operations; keys and values cross from the second-level cache once for 128 queries. Idea:
FlashAttention-3 (Shah et al., 2024), in Gluon, Triton's lower level, which lets warps take roles
and a product be waited for later than issued.

    fetching warp    | keys 0, values 0 | keys 1, values 1 | ...          as places become free
    tensor cores     | scores of page i | answer += weights of i - 1 |      | scores of i + 1 | ...
    other units                         | softmax of page i ........ |

The two groups hold 64 queries each, and drift apart: one's products cover the other's softmax too.
Queries stay in registers: from shared memory, 64-key products would read faster than it can serve.
A program stays on its multiprocessor and takes one tile and head after the other; its fetching warp
is pages ahead, in the next tile while the groups end this one.

No interpreter runs Gluon: without a card only the build can be checked, and the general kernel is
interpreted in its place.
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

from engine.kernels.gluon_names import async_load, barrier


@gluon.jit
def _softmax(
    scores, best, total, key, position, scale, window,
    PAGE: gl.constexpr, MASKED: gl.constexpr, WINDOWED: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """(weights, shrink, best, total) with the page whose first key has the position `key`."""
    if MASKED:
        at = key + gl.arange(0, PAGE, layout=gl.SliceLayout(0, LAYOUT))
        keep = at[None, :] <= position[:, None]
        if WINDOWED:
            keep = keep & (at[None, :] > position[:, None] - window)
        scores = gl.where(keep, scores, float("-inf"))
    higher = gl.maximum(best, gl.max(scores, 1) * scale)
    level = higher
    if MASKED:
        level = gl.where(higher == float("-inf"), 0.0, higher)
    weights = gl.exp2(scores * scale - level[:, None])
    shrink = gl.exp2(best - level)
    return weights, shrink, higher, total * shrink + gl.sum(weights, 1)


@gluon.jit
def _task(turn, n_tasks, tiles, window, HEADS: gl.constexpr, PAGE: gl.constexpr,
          BLOCK: gl.constexpr, RECORD: gl.constexpr, WINDOWED: gl.constexpr):  # fmt: skip
    """What this program does in its `turn`: (whether anything, query head, row, first and end
    token, first position, first and end page). Every other round runs backwards, as tiles come
    costliest first: so programs end up with much the same."""
    programs = gl.num_programs(0)
    nth = gl.program_id(0)
    if turn % 2 == 1:
        nth = programs - 1 - nth
    nth += turn * programs
    there = nth < n_tasks
    nth = gl.minimum(nth, n_tasks - 1)
    record = tiles + (nth // HEADS) * RECORD
    row = gl.load(record)
    first_token = gl.load(record + 1)
    end_token = gl.minimum(gl.load(record + 2), first_token + 2 * BLOCK)
    first_position = gl.load(record + 3)
    first = 0
    if WINDOWED:
        first = gl.maximum(first_position - window + 1, 0) // PAGE
    end = gl.cdiv(first_position + end_token - first_token, PAGE)
    return there, nth % HEADS, row, first_token, end_token, first_position, first, end


@gluon.jit
def _fetch(
    n_tasks, tiles, tables, table_stride, descriptor,
    keys, values, key_full, key_free, value_full, value_free, layer, window,
    LAYERS: gl.constexpr, KV_HEADS: gl.constexpr, GROUP: gl.constexpr, PAGE: gl.constexpr,
    BLOCK: gl.constexpr, RECORD: gl.constexpr, WINDOWED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Bring the pages of all tasks to shared memory, one after the other, as places become free."""
    done = 0
    for turn in range(gl.cdiv(n_tasks, gl.num_programs(0))):
        there, query_head, row, _, _, _, first, end = _task(
            turn, n_tasks, tiles, window, KV_HEADS * GROUP, PAGE, BLOCK, RECORD, WINDOWED
        )
        if there:
            table = tables + row * table_stride
            next_page = gl.load(table + first)
            for i in range(first, end):
                nth = done + i - first
                slot = nth % STAGES
                free = ((nth // STAGES) & 1) ^ 1
                page = next_page
                next_page = gl.load(table + gl.minimum(i + 1, end - 1))
                plane = ((page * LAYERS + layer) * 2) * KV_HEADS + query_head // GROUP
                mbarrier.wait(key_free.index(slot), free)
                mbarrier.expect(key_full.index(slot), descriptor.block_type.nbytes)
                async_load(descriptor, [plane * PAGE, 0], key_full.index(slot), keys.index(slot))
                mbarrier.wait(value_free.index(slot), free)
                mbarrier.expect(value_full.index(slot), descriptor.block_type.nbytes)
                async_load(
                    descriptor, [(plane + KV_HEADS) * PAGE, 0],
                    value_full.index(slot), values.index(slot),
                )  # fmt: skip
            done += end - first


@gluon.jit
def _pages(
    low, high, ahead, q, p, best, total, answer, position,
    keys, values, key_full, key_free, value_full, value_free, scale, window,
    PAGE: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr, MASKED: gl.constexpr,
    WINDOWED: gl.constexpr, SCORES: gl.constexpr, ANSWER: gl.constexpr, WEIGHTS: gl.constexpr,
):  # fmt: skip
    """Take in the pages low .. high - 1, of which page i is the (i + ahead)-th fetched; on entry
    and exit, p weighs the page before."""
    for i in range(low, high):
        nth = i + ahead
        slot = nth % STAGES
        mbarrier.wait(key_full.index(slot), (nth // STAGES) & 1)
        scores = warpgroup_mma(
            q, keys.index(slot).permute((1, 0)),
            gl.zeros([BLOCK, PAGE], gl.float32, SCORES), use_acc=False, is_async=True,
        )  # fmt: skip
        before = (nth - 1) % STAGES
        mbarrier.wait(value_full.index(before), ((nth - 1) // STAGES) & 1)
        answer = warpgroup_mma(p, values.index(before), answer, is_async=True)
        scores = warpgroup_mma_wait(1, deps=[scores])
        mbarrier.arrive(key_free.index(slot))
        weights, shrink, best, total = _softmax(
            scores, best, total, i * PAGE, position, scale, window, PAGE, MASKED, WINDOWED, SCORES
        )
        answer, p = warpgroup_mma_wait(0, deps=[answer, p])
        mbarrier.arrive(value_free.index(before))
        answer = answer * gl.convert_layout(shrink, gl.SliceLayout(1, ANSWER))[:, None]
        p = gl.convert_layout(weights.to(p.dtype), WEIGHTS)
    return p, best, total, answer


@gluon.jit
def _attend(
    group, queries, out, first_token, end_token, first_position, first, end, ahead,
    keys, values, key_full, key_free, value_full, value_free,
    query_head, scale, window, query_stride,
    HEADS: gl.constexpr, PAGE: gl.constexpr, DIM: gl.constexpr, BLOCK: gl.constexpr,
    WINDOWED: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """One group's 64 queries against the pages that they see, first .. own_end - 1."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, PAGE, 16])
    ANSWER: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, DIM, 16])
    QUERIES: gl.constexpr = gl.DotOperandLayout(0, SCORES, 2)
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, ANSWER, 2)
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [32 // (DIM // 8), DIM // 8], [WARPS, 1], [1, 0])
    keys_end = first_position + end_token - first_token  # of the tile's last query
    first_token += group * BLOCK
    first_position += group * BLOCK
    own_end = first
    if first_token < end_token:
        own_end = gl.cdiv(gl.minimum(first_position + BLOCK, keys_end), PAGE)
        whole_begin = first + 1
        if WINDOWED:
            cut = gl.cdiv(gl.maximum(first_position + BLOCK - window, 0), PAGE)
            whole_begin = gl.minimum(gl.maximum(whole_begin, cut), own_end)
        whole_end = gl.maximum((first_position + 1) // PAGE, whole_begin)

        token = first_token + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, WIDE))
        dim = gl.arange(0, DIM, layout=gl.SliceLayout(0, WIDE))
        mine = (token < end_token)[:, None] & (dim < DIM)[None, :]
        column = query_head * DIM + dim[None, :]
        source = queries + token.to(gl.int64)[:, None] * query_stride + column
        q = gl.convert_layout(gl.load(source, mask=mine, other=0.0), QUERIES)
        position = first_position + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, SCORES))
        best = gl.full([BLOCK], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
        total = gl.zeros([BLOCK], gl.float32, gl.SliceLayout(1, SCORES))
        answer = gl.zeros([BLOCK, DIM], gl.float32, ANSWER)

        slot = (first + ahead) % STAGES
        mbarrier.wait(key_full.index(slot), ((first + ahead) // STAGES) & 1)
        scores = warpgroup_mma(
            q, keys.index(slot).permute((1, 0)), gl.zeros([BLOCK, PAGE], gl.float32, SCORES),
            use_acc=False,
        )  # fmt: skip
        mbarrier.arrive(key_free.index(slot))
        weights, _, best, total = _softmax(
            scores, best, total, first * PAGE, position, scale, window, PAGE, True, WINDOWED, SCORES
        )
        p = gl.convert_layout(weights.to(q.dtype), WEIGHTS)
        if WINDOWED:
            p, best, total, answer = _pages(
                first + 1, whole_begin, ahead, q, p, best, total, answer, position,
                keys, values, key_full, key_free, value_full, value_free, scale, window,
                PAGE, BLOCK, STAGES, True, WINDOWED, SCORES, ANSWER, WEIGHTS,
            )  # fmt: skip
        p, best, total, answer = _pages(
            whole_begin, whole_end, ahead, q, p, best, total, answer, position,
            keys, values, key_full, key_free, value_full, value_free, scale, window,
            PAGE, BLOCK, STAGES, False, WINDOWED, SCORES, ANSWER, WEIGHTS,
        )  # fmt: skip
        p, best, total, answer = _pages(
            whole_end, own_end, ahead, q, p, best, total, answer, position,
            keys, values, key_full, key_free, value_full, value_free, scale, window,
            PAGE, BLOCK, STAGES, True, WINDOWED, SCORES, ANSWER, WEIGHTS,
        )  # fmt: skip
        last = own_end - 1 + ahead
        slot = last % STAGES
        held = values.index(slot)
        mbarrier.wait(value_full.index(slot), (last // STAGES) & 1)
        n_valid = keys_end - (own_end - 1) * PAGE
        if n_valid < PAGE:
            # Slots past the row's end may spell NaN, and 0 * NaN would reach the answer. Both
            # groups may do this to one page: they write the same bytes.
            place = gl.arange(0, PAGE, layout=gl.SliceLayout(1, WIDE))
            cleaned = held.load(WIDE)
            held.store(gl.where((place < n_valid)[:, None], cleaned, gl.zeros_like(cleaned)))
            fence_async_shared()
            barrier()
        answer = warpgroup_mma(p, held, answer)
        mbarrier.arrive(value_free.index(slot))
        total = gl.where(total > 0, total, 1.0)  # 0 in rows past the end
        answer = answer / gl.convert_layout(total, gl.SliceLayout(1, ANSWER))[:, None]
        target = out + token.to(gl.int64)[:, None] * (HEADS * DIM) + column
        gl.store(target, gl.convert_layout(answer.to(out.dtype.element_ty), WIDE), mask=mine)
    # Pages that only the other group sees: let them pass, each once it is there.
    for i in range(own_end, end):
        slot = (i + ahead) % STAGES
        turn = ((i + ahead) // STAGES) & 1
        mbarrier.wait(key_full.index(slot), turn)
        mbarrier.arrive(key_free.index(slot))
        mbarrier.wait(value_full.index(slot), turn)
        mbarrier.arrive(value_free.index(slot))


@gluon.jit
def _attend_all(
    group, queries, out, n_tasks, tiles,
    keys, values, key_full, key_free, value_full, value_free, scale, window, query_stride,
    HEADS: gl.constexpr, PAGE: gl.constexpr, DIM: gl.constexpr, BLOCK: gl.constexpr,
    RECORD: gl.constexpr, WINDOWED: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    done = 0
    for turn in range(gl.cdiv(n_tasks, gl.num_programs(0))):
        there, query_head, _, first_token, end_token, first_position, first, end = _task(
            turn, n_tasks, tiles, window, HEADS, PAGE, BLOCK, RECORD, WINDOWED
        )
        if there:
            _attend(
                group, queries, out, first_token, end_token, first_position, first, end,
                done - first, keys, values, key_full, key_free, value_full, value_free,
                query_head, scale, window, query_stride,
                HEADS, PAGE, DIM, BLOCK, WINDOWED, STAGES, WARPS,
            )  # fmt: skip
            done += end - first


@gluon.jit(do_not_specialize=["n_tasks", "layer", "window", "table_stride"])
def overlapped_kernel(
    queries,
    out,
    descriptor,
    tables,
    tiles,
    n_tasks,
    layer,
    scale,
    window,
    query_stride,
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
    keys = gl.allocate_shared_memory(descriptor.dtype, [STAGES, PAGE, DIM], descriptor.layout)
    values = gl.allocate_shared_memory(descriptor.dtype, [STAGES, PAGE, DIM], descriptor.layout)
    key_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    key_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    value_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    value_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(key_full.index(s), count=1)
        mbarrier.init(key_free.index(s), count=2)
        mbarrier.init(value_full.index(s), count=1)
        mbarrier.init(value_free.index(s), count=2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_attend_all, (
                0, queries, out, n_tasks, tiles,
                keys, values, key_full, key_free, value_full, value_free,
                scale, window, query_stride,
                KV_HEADS * GROUP, PAGE, DIM, BLOCK, RECORD, WINDOWED, STAGES, WARPS,
            )),
            (_attend_all, (
                1, queries, out, n_tasks, tiles,
                keys, values, key_full, key_free, value_full, value_free,
                scale, window, query_stride,
                KV_HEADS * GROUP, PAGE, DIM, BLOCK, RECORD, WINDOWED, STAGES, WARPS,
            )),
            (_fetch, (
                n_tasks, tiles, tables, table_stride, descriptor,
                keys, values, key_full, key_free, value_full, value_free, layer, window,
                LAYERS, KV_HEADS, GROUP, PAGE, BLOCK, RECORD, WINDOWED, STAGES,
            )),
        ],
        [WARPS, 1],
        [REGISTERS, FETCH_REGISTERS],
    )  # fmt: skip
