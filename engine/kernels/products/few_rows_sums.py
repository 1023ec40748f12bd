"""The end of a tile in `few_rows_hopper`: partial sums are merged if shared, scaled, and stored."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from twolane.engine.kernels.gluon_names import barrier


@gluon.jit
def merge(
    low, high, partials, counters, tile, begin, end, n_tiles, n_chunks,
    HALF: gl.constexpr, ROWS: gl.constexpr, PAIR: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """(low, high, whether they are complete) for this program's chunks begin to end of a tile. The
    program with the last chunk adds the partial sums of the others, in their order."""
    VALUES: gl.constexpr = (1 + PAIR) * HALF * ROWS
    unit = gl.arange(0, HALF, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    place = unit * ROWS + row  # in one half of a partial sum
    program, programs = gl.program_id(0), gl.num_programs(0)
    all_chunks = n_tiles * n_chunks
    finishes = end == (tile + 1) * n_chunks
    if not finishes:
        own = partials + program * VALUES + place
        gl.store(own, low)
        if PAIR:
            gl.store(own + HALF * ROWS, high)
        # Every thread's stores, then the release; the acquire, then every thread's loads.
        barrier()
        last = ((tile + 1) * n_chunks * programs - 1) // all_chunks
        gl.atomic_add(counters + last, 1, sem="release")
    elif begin > tile * n_chunks:
        first = ((tile * n_chunks + 1) * programs - 1) // all_chunks
        came = 0
        while came < program - first:
            came = gl.atomic_add(counters + program, 0, sem="acquire")
        barrier()
        for other in range(first, program):
            theirs = partials + other * VALUES + place
            low += gl.load(theirs, cache_modifier=".cg")
            if PAIR:
                high += gl.load(theirs + HALF * ROWS, cache_modifier=".cg")
        gl.store(counters + program, 0)
    return low, high, finishes


@gluon.jit
def scale(
    low, high, first_low, first_high, row_scales, scales, n_rows, n_out,
    HALF: gl.constexpr, ROWS: gl.constexpr, PAIR: gl.constexpr, GATED: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    """(low, high) of FP8 rows and weights, times the scales of both."""
    unit = gl.arange(0, HALF, layout=gl.SliceLayout(1, LAYOUT))
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, LAYOUT))
    of_row = gl.load(row_scales + row, mask=row < n_rows, other=0.0)[None, :]
    low *= gl.load(scales + first_low + unit, mask=first_low + unit < n_out)[:, None]
    low *= of_row  # one factor at a time: their product would need registers for a tile
    if PAIR:
        keep_high = first_high + unit < n_out * (2 if GATED else 1)
        high *= gl.load(scales + first_high + unit, mask=keep_high)[:, None]
        high *= of_row
    return low, high


@gluon.jit
def finish(
    low, high, first_low, first_high, out, bias, n_rows, n_out,
    HALF: gl.constexpr, ROWS: gl.constexpr, PAIR: gl.constexpr, GATED: gl.constexpr,
    BIASED: gl.constexpr, LAYOUT: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Add bias, apply the gate, round, transpose, store."""
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
