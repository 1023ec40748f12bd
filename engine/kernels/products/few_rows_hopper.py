"""Products of a few rows on Hopper: a producer warp streams weights, one or two groups multiply.

    before the wait   the producer warp loads a ring full of weights (which no kernel writes)
    afterwards        rows are loaded into the same stages; stage by stage, as they become free
    tensor cores      [64 outputs, inner] x [inner, rows]: weights are the rows of the product, so
                      that 8 input rows need no padding
    REST              96 rows are multiplied as 64 and 32, 192 as 128 and 64: tensors of Triton are
                      as wide as a power of two, and padding costs time to load and multiply
    FP8               both sides; sums are scaled by row and output at the end of a tile
    NORMED            rows before their norm: sums are divided by the root of the row's mean square
                      at the end of a tile
    ADDS              a whole tile is added to the residual stream, as `few_rows_sums.add` says

A stage holds one box of weights of HALF outputs, or a pair, low and high: adjacent outputs, or the
gates and ups of the same units, whose product then never leaves the registers. Ideas: the warp
specialisation of FlashAttention-3 (Shah et al., 2024); Stream-K (Osama et al., 2023) for shares as
even as chunks allow. Each program processes the tiles that it starts first, and the rest of a
shared tile last: so all programs are at one or two positions of the input, whose rows the cache
serves to many at once. The program with the last chunk of a tile finishes it: programs only wait
for lower-numbered ones, which started earlier.
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

from twolane.engine.kernels.gluon_names import async_load
from twolane.engine.kernels.products.few_rows_sums import (
    add,
    find_factors,
    finish,
    hold_scales,
    load_norm,
    load_residual,
    load_scales,
    merge,
    scale_rows,
)


@gluon.jit
def _outputs(tile, n_out, HALF: gl.constexpr, PAIR: gl.constexpr, GATED: gl.constexpr):
    """(first low output, first high output) of a tile."""
    low = tile * HALF
    high = low + n_out  # from a gate to its up
    if PAIR and not GATED:
        low = tile * (2 * HALF)
        high = low + HALF
    return low, high


@gluon.jit
def _share(n_tiles, n_chunks, SPLIT: gl.constexpr):
    """(begin, middle, end) of this program's share of the chunks of all tiles, concatenated. Middle
    is where its first own tile begins, or end: it processes middle to end, then begin to middle."""
    each = 1 if SPLIT else n_chunks
    units = n_tiles * n_chunks if SPLIT else n_tiles
    program, programs = gl.program_id(0), gl.num_programs(0)
    begin = program * units // programs * each
    end = (program + 1) * units // programs * each
    return begin, gl.minimum(gl.cdiv(begin, n_chunks) * n_chunks, end), end


@gluon.jit
def _next(tile, chunk, done, begin, middle, end, n_chunks):
    """(tile, chunk) after the program's chunk number `done`."""
    chunk += 1
    if chunk == n_chunks:
        chunk = 0
        tile += 1
    if done + 1 == end - middle:
        tile = begin // n_chunks
        chunk = begin % n_chunks
    return tile, chunk


@gluon.jit
def _fetch(
    x, weight, boxes, rest, lows, highs, full, free, n_out, n_tiles, n_chunks,
    HALF: gl.constexpr, ROWS: gl.constexpr, REST: gl.constexpr, BLOCK_IN: gl.constexpr,
    STAGES: gl.constexpr, SPLIT: gl.constexpr, PAIR: gl.constexpr, GATED: gl.constexpr,
    PDL: gl.constexpr,
):  # fmt: skip
    """Load this program's chunks to shared memory, one after the other."""
    BOX: gl.constexpr = x.block_type.shape[0]
    BOXES: gl.constexpr = ROWS // BOX  # of the first part
    n_bytes: gl.constexpr = (1 + PAIR) * weight.block_type.nbytes + (
        ROWS + REST
    ) // BOX * x.block_type.nbytes
    begin, middle, end = _share(n_tiles, n_chunks, SPLIT)
    early = gl.minimum(end - begin, STAGES)
    at = middle if middle < end else begin
    tile = at // n_chunks
    chunk = at % n_chunks
    for i in range(early):
        low, high = _outputs(tile, n_out, HALF, PAIR, GATED)
        mbarrier.expect(full.index(i), n_bytes)
        async_load(weight, [low, chunk * BLOCK_IN], full.index(i), lows.index(i))
        if PAIR:
            async_load(weight, [high, chunk * BLOCK_IN], full.index(i), highs.index(i))
        tile, chunk = _next(tile, chunk, i, begin, middle, end, n_chunks)
    if PDL:
        gdc_wait()
    tile = at // n_chunks
    chunk = at % n_chunks
    for done in range(end - begin):
        slot = done % STAGES
        column = chunk * BLOCK_IN
        there = full.index(slot)
        if done >= early:
            low, high = _outputs(tile, n_out, HALF, PAIR, GATED)
            mbarrier.wait(free.index(slot), ((done // STAGES) & 1) ^ 1)
            mbarrier.expect(there, n_bytes)
            async_load(weight, [low, column], there, lows.index(slot))
            if PAIR:
                async_load(weight, [high, column], there, highs.index(slot))
        for box in gl.static_range(BOXES):
            async_load(x, [box * BOX, column], there, boxes.index(slot * BOXES + box))
        if REST:
            async_load(x, [ROWS, column], there, rest.index(slot))
        tile, chunk = _next(tile, chunk, done, begin, middle, end, n_chunks)
    if PDL == 2:  # early, but only after all loads are issued: memory serves them in order
        gdc_launch_dependents()


@gluon.jit
def _multiply(
    rows, rest, lows, highs, full, free, factors, rest_factors, out, bias, partials, counters,
    row_scales, scales, residual, norm, squares, n_rows, n_out, n_tiles, n_chunks, n_parts,
    mean_share, epsilon,
    HALF: gl.constexpr, ROWS: gl.constexpr, REST: gl.constexpr, STAGES: gl.constexpr,
    SPLIT: gl.constexpr, PAIR: gl.constexpr, GATED: gl.constexpr, BIASED: gl.constexpr,
    SCALED: gl.constexpr, NORMED: gl.constexpr, ADDS: gl.constexpr, WARPS: gl.constexpr,
    PDL: gl.constexpr,
):  # fmt: skip
    ROWS_PAD: gl.constexpr = ROWS + REST
    REST_WIDTH: gl.constexpr = REST if REST else ROWS  # a width that exists, where there is no rest
    DEPTH: gl.constexpr = 256 // rows.dtype.primitive_bitwidth  # of one product: 32 bytes
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, ROWS, DEPTH])
    REST_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [WARPS, 1], [16, REST_WIDTH, DEPTH]
    )
    AT_ONCE: gl.constexpr = (1 + PAIR) * (2 if REST else 1)  # products of a chunk
    if PDL:
        gdc_wait()
    if PDL == 1:
        gdc_launch_dependents()
    if NORMED:
        find_factors(squares, factors, n_parts, mean_share, epsilon, 0, ROWS, ROWS_PAD, WARPS)
        if REST:
            find_factors(
                squares, rest_factors, n_parts, mean_share, epsilon, ROWS, REST, ROWS_PAD, WARPS
            )
    if SCALED:
        hold_scales(row_scales, factors, n_rows, 0, ROWS, WARPS)
        if REST:
            hold_scales(row_scales, rest_factors, n_rows, ROWS, REST, WARPS)
    all_begin, middle, all_end = _share(n_tiles, n_chunks, SPLIT)
    done = 0
    n_front = gl.cdiv(all_end - middle, n_chunks)
    for nth in range(n_front + (middle > all_begin).to(gl.int32)):
        tile = middle // n_chunks + nth
        begin = tile * n_chunks
        end = gl.minimum(all_end, begin + n_chunks)
        if nth == n_front:
            tile = all_begin // n_chunks
            begin = all_begin
            end = middle
        first_low, first_high = _outputs(tile, n_out, HALF, PAIR, GATED)
        if SCALED:
            scales_low, scales_high = load_scales(
                scales, first_low, first_high, n_out, HALF, PAIR, GATED, LAYOUT
            )
        if ADDS:
            finishes = end == (tile + 1) * n_chunks
            norm_low, norm_high = load_norm(
                norm, first_low, first_high, finishes, n_out, HALF, PAIR, WARPS
            )
            held_low, held_high = load_residual(
                residual, first_low, first_high, finishes, n_rows, n_out, HALF, 0, ROWS, PAIR,
                WARPS,
            )  # fmt: skip
            if REST:
                rest_held_low, rest_held_high = load_residual(
                    residual, first_low, first_high, finishes, n_rows, n_out, HALF, ROWS, REST,
                    PAIR, WARPS,
                )  # fmt: skip
        low = gl.zeros([HALF, ROWS], gl.float32, LAYOUT)
        high = gl.zeros([HALF, ROWS], gl.float32, LAYOUT)
        rest_low = gl.zeros([HALF, REST_WIDTH], gl.float32, REST_LAYOUT)
        rest_high = gl.zeros([HALF, REST_WIDTH], gl.float32, REST_LAYOUT)
        # Wait for each chunk's products after issuing the next chunk's.
        for chunk in range(begin, end):
            slot = done % STAGES
            mbarrier.wait(full.index(slot), (done // STAGES) & 1)
            turned = rows.index(slot).permute((1, 0))
            low = warpgroup_mma(lows.index(slot), turned, low, is_async=True)
            if REST:
                turned_rest = rest.index(slot).permute((1, 0))
                rest_low = warpgroup_mma(lows.index(slot), turned_rest, rest_low, is_async=True)
            if PAIR:
                high = warpgroup_mma(highs.index(slot), turned, high, is_async=True)
                if REST:
                    rest_high = warpgroup_mma(
                        highs.index(slot), turned_rest, rest_high, is_async=True
                    )
            low, high, rest_low, rest_high = _wait(
                low, high, rest_low, rest_high, AT_ONCE, PAIR, REST
            )
            mbarrier.arrive(free.index((done + STAGES - 1) % STAGES), pred=chunk > begin)
            done += 1
        low, high, rest_low, rest_high = _wait(low, high, rest_low, rest_high, 0, PAIR, REST)
        mbarrier.arrive(free.index((done + STAGES - 1) % STAGES))
        whole = True
        if SPLIT:
            low, high, rest_low, rest_high, whole = merge(
                low, high, rest_low, rest_high, partials, counters, tile, begin, end, n_tiles,
                n_chunks, HALF, ROWS, REST, PAIR, LAYOUT, REST_LAYOUT,
            )  # fmt: skip
        if whole:
            if SCALED:  # one factor at a time: their product would need registers for a tile
                low *= scales_low[:, None]
                if PAIR:
                    high *= scales_high[:, None]
                if REST:
                    unit: gl.constexpr = gl.SliceLayout(1, REST_LAYOUT)
                    rest_low *= gl.convert_layout(scales_low, unit)[:, None]
                    if PAIR:
                        rest_high *= gl.convert_layout(scales_high, unit)[:, None]
            if SCALED or NORMED:
                low, high = scale_rows(low, high, factors, PAIR, LAYOUT)
                if REST:
                    rest_low, rest_high = scale_rows(
                        rest_low, rest_high, rest_factors, PAIR, REST_LAYOUT
                    )
            if ADDS:
                add(
                    low, high, held_low, held_high, norm_low, norm_high, tile, first_low,
                    first_high, out, bias, residual, squares, n_rows, n_out,
                    HALF, 0, ROWS, ROWS_PAD, PAIR, BIASED, LAYOUT, WARPS,
                )  # fmt: skip
                if REST:
                    add(
                        rest_low, rest_high, rest_held_low, rest_held_high, norm_low, norm_high,
                        tile, first_low, first_high, out, bias, residual, squares, n_rows, n_out,
                        HALF, ROWS, REST, ROWS_PAD, PAIR, BIASED, REST_LAYOUT, WARPS,
                    )  # fmt: skip
            else:
                finish(
                    low, high, first_low, first_high, out, bias, n_rows, n_out,
                    HALF, 0, ROWS, PAIR, GATED, BIASED, LAYOUT, WARPS,
                )  # fmt: skip
                if REST:
                    finish(
                        rest_low, rest_high, first_low, first_high, out, bias, n_rows, n_out,
                        HALF, ROWS, REST, PAIR, GATED, BIASED, REST_LAYOUT, WARPS,
                    )  # fmt: skip


@gluon.jit
def _wait(
    low, high, rest_low, rest_high,
    UNDER_WAY: gl.constexpr, PAIR: gl.constexpr, REST: gl.constexpr,
):  # fmt: skip
    """The sums, when at most UNDER_WAY products are still under way."""
    if PAIR and REST:
        low, high, rest_low, rest_high = warpgroup_mma_wait(
            UNDER_WAY, deps=[low, high, rest_low, rest_high]
        )
    elif PAIR:
        low, high = warpgroup_mma_wait(UNDER_WAY, deps=[low, high])
    elif REST:
        low, rest_low = warpgroup_mma_wait(UNDER_WAY, deps=[low, rest_low])
    else:
        low = warpgroup_mma_wait(UNDER_WAY, deps=[low])
    return low, high, rest_low, rest_high


@gluon.jit(do_not_specialize=["n_rows", "n_tiles", "n_chunks", "n_parts"])
def streamed_kernel(
    x,
    weight,
    out,
    bias,
    partials,
    counters,
    row_scales,
    scales,
    residual,
    norm,
    squares,
    n_rows,
    n_out,
    n_tiles,
    n_chunks,
    n_parts,
    mean_share,
    epsilon,
    HALF: gl.constexpr,
    ROWS: gl.constexpr,
    REST: gl.constexpr,
    BLOCK_IN: gl.constexpr,
    STAGES: gl.constexpr,
    SPLIT: gl.constexpr,
    PAIR: gl.constexpr,
    GATED: gl.constexpr,
    BIASED: gl.constexpr,
    SCALED: gl.constexpr,
    NORMED: gl.constexpr,
    ADDS: gl.constexpr,
    WARPS: gl.constexpr,
    FETCH_REGISTERS: gl.constexpr,
    PDL: gl.constexpr,
):
    lows = gl.allocate_shared_memory(weight.dtype, [STAGES, HALF, BLOCK_IN], weight.layout)
    highs = lows
    if PAIR:
        highs = gl.allocate_shared_memory(weight.dtype, [STAGES, HALF, BLOCK_IN], weight.layout)
    rows = gl.allocate_shared_memory(x.dtype, [STAGES, ROWS, BLOCK_IN], x.layout)
    BOX: gl.constexpr = x.block_type.shape[0]
    boxes = rows._reinterpret(x.dtype, [STAGES * ROWS // BOX, BOX, BLOCK_IN], x.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    # Of each row: its scale, or one by the root of its mean square.
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    factors = gl.allocate_shared_memory(gl.float32, [ROWS], FLAT)
    rest = rows
    rest_factors = factors
    if REST:
        rest = gl.allocate_shared_memory(x.dtype, [STAGES, REST, BLOCK_IN], x.layout)
        rest_factors = gl.allocate_shared_memory(gl.float32, [REST], FLAT)
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(free.index(s), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (
                rows, rest, lows, highs, full, free, factors, rest_factors, out, bias, partials,
                counters, row_scales, scales, residual, norm, squares, n_rows, n_out, n_tiles,
                n_chunks, n_parts, mean_share, epsilon,
                HALF, ROWS, REST, STAGES, SPLIT, PAIR, GATED, BIASED, SCALED, NORMED, ADDS, WARPS,
                PDL,
            )),
            (_fetch, (
                x, weight, boxes, rest, lows, highs, full, free, n_out, n_tiles, n_chunks,
                HALF, ROWS, REST, BLOCK_IN, STAGES, SPLIT, PAIR, GATED, PDL,
            )),
        ],
        [1],
        [FETCH_REGISTERS],
    )  # fmt: skip
