"""silu(gate) * up of many rows on Hopper: a producer warp loads, two groups of four warps multiply.

    producer warp    a ring of stages: 64 columns of 128 rows, and of 128 gates and their ups
    tensor cores     [64 rows, inner] x [inner, 256 outputs] per group
    other units                the previous tile: silu, transpose, store ...

Programs are persistent and process one tile after the other. A completed tile's sums are rounded,
which halves them: so the next tile's sums fit beside them, and its first products run while the
other units finish the previous tile.

Tiles are ordered in bands of rows, so that concurrent programs read much the same data, which is
then in the L2 cache. Idea: warp specialisation as in FlashAttention-3 (Shah et al., 2024).

There is no interpreter for Gluon: without a card only the build is tested.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from twolane.engine.kernels.gluon_names import async_load, async_store, barrier


@gluon.jit
def _corner(nth, n_down, n_across, band):
    """(row, column) of the nth tile, in tiles."""
    first = nth // (band * n_across) * band
    height = gl.minimum(n_down - first, band)
    inside = nth % (band * n_across)
    return first + inside % height, inside // height


@gluon.jit
def _fetch(
    x, weight, rows, outputs, full, free, n_units, n_down, n_across, band, n_chunks,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Load the chunks of all tiles to shared memory, one after the other, as buffers become free.

    The gates of a last tile may be followed by some ups; their results are not stored.
    """
    BLOCK: gl.constexpr = x.block_type.shape[0]
    HALF: gl.constexpr = weight.block_type.shape[0]
    DEEP: gl.constexpr = weight.block_type.shape[1]
    n_bytes: gl.constexpr = 2 * x.block_type.nbytes + 2 * weight.block_type.nbytes
    done = 0
    for nth in range(gl.program_id(0), n_down * n_across, gl.num_programs(0)):
        down, across = _corner(nth, n_down, n_across, band)
        row = down * (2 * BLOCK)
        unit = across * HALF
        for chunk in range(n_chunks):
            slot = done % STAGES
            column = chunk * DEEP
            there = full.index(slot)
            mbarrier.wait(free.index(slot), ((done // STAGES) & 1) ^ 1)
            mbarrier.expect(there, n_bytes)
            pair = outputs.index(slot)
            async_load(weight, [unit, column], there, pair.slice(0, HALF))
            async_load(weight, [unit + n_units, column], there, pair.slice(HALF, HALF))
            async_load(x, [row, column], there, rows.index(slot * 2))
            async_load(x, [row + BLOCK, column], there, rows.index(slot * 2 + 1))
            done += 1


@gluon.jit
def _sigmoid(x):
    """Uses only the special function units; their limits are correct: 1 / (1 + inf) = 0."""
    return gl.inline_asm_elementwise(
        """{
        .reg .f32 t;
        mul.f32 t, $1, 0fBFB8AA3B;
        ex2.approx.ftz.f32 t, t;
        add.f32 t, t, 0f3F800000;
        rcp.approx.ftz.f32 $0, t;
        }""",
        "=f,f", [x], dtype=gl.float32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def _finish(held, out, row, across, boxes, group: gl.constexpr):
    """silu(gate) * up of a group's sums, through its two boxes, to `out`: the stores are in flight
    on return."""
    BLOCK: gl.constexpr = out.block_type.shape[1]
    ROWS: gl.constexpr = held.shape[0]
    HALF: gl.constexpr = held.shape[1] // 2
    gate, up = held.reshape([ROWS, 2, HALF]).permute((0, 2, 1)).split()
    gate = gate.to(gl.float32)
    gated = (gate * _sigmoid(gate) * up.to(gl.float32)).to(out.dtype)
    left, right = gated.reshape([ROWS, 2, BLOCK]).permute((0, 2, 1)).split()
    tma.store_wait(0)  # on the one thread that issued the previous stores
    barrier()
    boxes.index(2 * group).store(left)
    boxes.index(2 * group + 1).store(right)
    fence_async_shared()
    barrier()
    async_store(out, [row, across * HALF], boxes.index(2 * group))
    async_store(out, [row, across * HALF + BLOCK], boxes.index(2 * group + 1))


@gluon.jit
def _multiply(
    group: gl.constexpr, rows, outputs, boxes, full, free, out, n_down, n_across, band, n_chunks,
    STAGES: gl.constexpr,
):  # fmt: skip
    BLOCK: gl.constexpr = rows.shape[1]
    WIDE: gl.constexpr = outputs.shape[1]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDE, 16])
    done = 0
    # Before the first tile there is a dummy one outside the matrix, which is not stored.
    held = gl.zeros([BLOCK, WIDE], out.dtype, LAYOUT)
    held_row = n_down * (2 * BLOCK)
    held_across = 0
    for nth in range(gl.program_id(0), n_down * n_across, gl.num_programs(0)):
        down, across = _corner(nth, n_down, n_across, band)
        sums = gl.zeros([BLOCK, WIDE], gl.float32, LAYOUT)
        # As many chunks' products as take about as long as finishing the previous tile.
        for _ in gl.static_range(2):
            slot = done % STAGES
            mbarrier.wait(full.index(slot), (done // STAGES) & 1)
            turned = outputs.index(slot).permute((1, 0))
            sums = warpgroup_mma(rows.index(slot * 2 + group), turned, sums, is_async=True)
            done += 1
        _finish(held, out, held_row, held_across, boxes, group)
        sums = warpgroup_mma_wait(1, deps=[sums])
        mbarrier.arrive(free.index((done + STAGES - 2) % STAGES))
        # Wait for each chunk's products after issuing the next chunk's.
        for _ in range(2, n_chunks):
            slot = done % STAGES
            mbarrier.wait(full.index(slot), (done // STAGES) & 1)
            turned = outputs.index(slot).permute((1, 0))
            sums = warpgroup_mma(rows.index(slot * 2 + group), turned, sums, is_async=True)
            sums = warpgroup_mma_wait(1, deps=[sums])
            mbarrier.arrive(free.index((done + STAGES - 1) % STAGES))
            done += 1
        sums = warpgroup_mma_wait(0, deps=[sums])
        mbarrier.arrive(free.index((done + STAGES - 1) % STAGES))
        held = sums.to(out.dtype)
        held_row = (down * 2 + group) * BLOCK
        held_across = across
    _finish(held, out, held_row, held_across, boxes, group)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["n_units", "n_down", "n_across", "band", "n_chunks"])
def gated_many_rows_kernel(
    x,
    weight,
    out,
    n_units,
    n_down,
    n_across,
    band,
    n_chunks,
    STAGES: gl.constexpr,
    REGISTERS: gl.constexpr,
    FETCH_REGISTERS: gl.constexpr,
):
    BLOCK: gl.constexpr = x.block_type.shape[0]
    HALF: gl.constexpr = weight.block_type.shape[0]
    DEEP: gl.constexpr = weight.block_type.shape[1]
    rows = gl.allocate_shared_memory(x.dtype, [STAGES * 2, BLOCK, DEEP], x.layout)
    outputs = gl.allocate_shared_memory(weight.dtype, [STAGES, 2 * HALF, DEEP], weight.layout)
    boxes = gl.allocate_shared_memory(out.dtype, [4, BLOCK, HALF // 2], out.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(free.index(s), count=2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (
                0, rows, outputs, boxes, full, free, out, n_down, n_across, band, n_chunks, STAGES,
            )),
            (_multiply, (
                1, rows, outputs, boxes, full, free, out, n_down, n_across, band, n_chunks, STAGES,
            )),
            (_fetch, (
                x, weight, rows, outputs, full, free, n_units, n_down, n_across, band, n_chunks,
                STAGES,
            )),
        ],
        [4, 1],
        [REGISTERS, FETCH_REGISTERS],
    )  # fmt: skip
