"""Products of a few rows on a Hopper: one warp streams weights, one or two groups multiply.

    before the wait   the fetching warp asks for the ring's worth of weights (nobody writes those)
    afterwards        rows follow into the same stages; stage by stage, as places become free
    tensor cores      [64 outputs, inner] x [inner, rows]: weights are the tall side, so that 8 rows
                      cost no more than they must

A stage holds one box of weights of HALF outputs, or a pair, low and high: neighbours, or the gates
and ups of the same units, whose product then never leaves the registers. Ideas: warp roles of
FlashAttention-3 (Shah et al., 2024); Stream-K (Osama et al., 2023) for the last of an output's
programs adding up what all of them left, in their order, whoever comes last.
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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine.kernels.gluon_names import async_load, barrier


@gluon.jit
def _item(
    nth, splits, n_chunks, n_out, HALF: gl.constexpr, PAIR: gl.constexpr, GATED: gl.constexpr
):
    """(first low output, first high output, first chunk, end chunk) of the nth item."""
    tile = nth // splits
    split = nth % splits
    low = tile * HALF
    high = low + n_out  # from a gate to its up
    if PAIR and not GATED:
        low = tile * (2 * HALF)
        high = low + HALF
    return low, high, split * n_chunks // splits, (split + 1) * n_chunks // splits


@gluon.jit
def _fetch(
    x, weight, rows, lows, highs, full, free, n_out, n_items, splits, n_chunks,
    HALF: gl.constexpr, BLOCK_IN: gl.constexpr, STAGES: gl.constexpr, PAIR: gl.constexpr,
    GATED: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Bring the chunks of all items to shared memory, one after the other."""
    n_bytes: gl.constexpr = (1 + PAIR) * weight.block_type.nbytes + x.block_type.nbytes
    first = gl.program_id(0)
    low, high, begin, end = _item(first, splits, n_chunks, n_out, HALF, PAIR, GATED)
    early = gl.minimum(end - begin, STAGES)
    if first >= n_items:
        early = 0
    for i in range(early):
        column = (begin + i) * BLOCK_IN
        mbarrier.expect(full.index(i), n_bytes)
        async_load(weight, [low, column], full.index(i), lows.index(i))
        if PAIR:
            async_load(weight, [high, column], full.index(i), highs.index(i))
    if PDL:
        gdc_wait()
    done = 0
    for item in range(first, n_items, gl.num_programs(0)):
        low, high, begin, end = _item(item, splits, n_chunks, n_out, HALF, PAIR, GATED)
        for chunk in range(begin, end):
            slot = done % STAGES
            column = chunk * BLOCK_IN
            there = full.index(slot)
            if done >= early:
                mbarrier.wait(free.index(slot), ((done // STAGES) & 1) ^ 1)
                mbarrier.expect(there, n_bytes)
                async_load(weight, [low, column], there, lows.index(slot))
                if PAIR:
                    async_load(weight, [high, column], there, highs.index(slot))
            async_load(x, [0, column], there, rows.index(slot))
            done += 1
    if PDL == 2:  # early, but not before all has been asked for: memory serves one after the other
        gdc_launch_dependents()


@gluon.jit
def _finish(
    low, high, first_low, first_high, out, bias, n_rows, n_out,
    HALF: gl.constexpr, ROWS: gl.constexpr, PAIR: gl.constexpr, GATED: gl.constexpr,
    BIASED: gl.constexpr, LAYOUT: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Bias, gate, round, turn around, store."""
    WIDE: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, WARPS], [0, 1])
    if BIASED:
        unit = gl.arange(0, HALF, layout=gl.SliceLayout(1, LAYOUT))
        keep_low = first_low + unit < n_out
        keep_high = first_high + unit < n_out * (2 if GATED else 1)
        added = gl.load(bias + first_low + unit, mask=keep_low, other=0.0)
        low += added.to(gl.float32)[:, None]
        if PAIR:
            added = gl.load(bias + first_high + unit, mask=keep_high, other=0.0)
            high += added.to(gl.float32)[:, None]
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, WIDE))[None, :]
    output = first_low + gl.arange(0, HALF, layout=gl.SliceLayout(1, WIDE))[:, None]
    at = out + row.to(gl.int64) * n_out + output
    keep = (row < n_rows) & (output < n_out)
    if GATED:
        gated = low / (1.0 + gl.exp(-low)) * high
        gl.store(at, gl.convert_layout(gated.to(out.dtype.element_ty), WIDE), mask=keep)
    else:
        gl.store(at, gl.convert_layout(low.to(out.dtype.element_ty), WIDE), mask=keep)
        if PAIR:
            keep = (row < n_rows) & (output + HALF < n_out)
            gl.store(at + HALF, gl.convert_layout(high.to(out.dtype.element_ty), WIDE), mask=keep)


@gluon.jit
def _multiply(
    rows, lows, highs, full, free, out, bias, partials, counters,
    n_rows, n_out, n_items, splits, n_chunks,
    HALF: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr, SPLIT: gl.constexpr,
    PAIR: gl.constexpr, GATED: gl.constexpr, BIASED: gl.constexpr, WARPS: gl.constexpr,
    PDL: gl.constexpr,
):  # fmt: skip
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, ROWS, 16])
    if PDL:
        gdc_wait()
    if PDL == 1:
        gdc_launch_dependents()
    unit = gl.arange(0, HALF, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    place = unit * ROWS + row  # in one half of an item's partial sums
    done = 0
    for item in range(gl.program_id(0), n_items, gl.num_programs(0)):
        first_low, first_high, begin, end = _item(item, splits, n_chunks, n_out, HALF, PAIR, GATED)
        low = gl.zeros([HALF, ROWS], gl.float32, LAYOUT)
        high = gl.zeros([HALF, ROWS], gl.float32, LAYOUT)
        # Each chunk's products are waited for when the next chunk's have been issued.
        for chunk in range(begin, end):
            slot = done % STAGES
            mbarrier.wait(full.index(slot), (done // STAGES) & 1)
            turned = rows.index(slot).permute((1, 0))
            low = warpgroup_mma(lows.index(slot), turned, low, is_async=True)
            if PAIR:
                high = warpgroup_mma(highs.index(slot), turned, high, is_async=True)
                low, high = warpgroup_mma_wait(2, deps=[low, high])
            else:
                low = warpgroup_mma_wait(1, deps=[low])
            mbarrier.arrive(free.index((done + STAGES - 1) % STAGES), pred=chunk > begin)
            done += 1
        if PAIR:
            low, high = warpgroup_mma_wait(0, deps=[low, high])
        else:
            low = warpgroup_mma_wait(0, deps=[low])
        mbarrier.arrive(free.index((done + STAGES - 1) % STAGES), pred=end > begin)
        if SPLIT:
            own = partials + item * ((1 + PAIR) * HALF * ROWS) + place
            gl.store(own, low)
            if PAIR:
                gl.store(own + HALF * ROWS, high)
            # Every thread's stores, then the release; the acquire, then every thread's loads.
            barrier()
            tile = item // splits
            if gl.atomic_add(counters + tile, 1, sem="acq_rel") == splits - 1:
                barrier()
                low = gl.zeros([HALF, ROWS], gl.float32, LAYOUT)
                high = gl.zeros([HALF, ROWS], gl.float32, LAYOUT)
                for split in range(splits):
                    nth = tile * splits + split
                    theirs = partials + nth * ((1 + PAIR) * HALF * ROWS) + place
                    low += gl.load(theirs, cache_modifier=".cg")
                    if PAIR:
                        high += gl.load(theirs + HALF * ROWS, cache_modifier=".cg")
                _finish(
                    low, high, first_low, first_high, out, bias, n_rows, n_out,
                    HALF, ROWS, PAIR, GATED, BIASED, LAYOUT, WARPS,
                )  # fmt: skip
                gl.store(counters + tile, 0)
        else:
            _finish(
                low, high, first_low, first_high, out, bias, n_rows, n_out,
                HALF, ROWS, PAIR, GATED, BIASED, LAYOUT, WARPS,
            )  # fmt: skip


@gluon.jit(do_not_specialize=["n_rows", "n_items", "splits", "n_chunks"])
def streamed_kernel(
    x,
    weight,
    out,
    bias,
    partials,
    counters,
    n_rows,
    n_out,
    n_items,
    splits,
    n_chunks,
    HALF: gl.constexpr,
    ROWS: gl.constexpr,
    BLOCK_IN: gl.constexpr,
    STAGES: gl.constexpr,
    SPLIT: gl.constexpr,
    PAIR: gl.constexpr,
    GATED: gl.constexpr,
    BIASED: gl.constexpr,
    WARPS: gl.constexpr,
    FETCH_REGISTERS: gl.constexpr,
    PDL: gl.constexpr,
):
    lows = gl.allocate_shared_memory(weight.dtype, [STAGES, HALF, BLOCK_IN], weight.layout)
    highs = lows
    if PAIR:
        highs = gl.allocate_shared_memory(weight.dtype, [STAGES, HALF, BLOCK_IN], weight.layout)
    rows = gl.allocate_shared_memory(x.dtype, [STAGES, ROWS, BLOCK_IN], x.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(free.index(s), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (
                rows, lows, highs, full, free, out, bias, partials, counters,
                n_rows, n_out, n_items, splits, n_chunks,
                HALF, ROWS, STAGES, SPLIT, PAIR, GATED, BIASED, WARPS, PDL,
            )),
            (_fetch, (
                x, weight, rows, lows, highs, full, free, n_out, n_items, splits, n_chunks,
                HALF, BLOCK_IN, STAGES, PAIR, GATED, PDL,
            )),
        ],
        [1],
        [FETCH_REGISTERS],
    )  # fmt: skip
