"""The end of a tile in `few_rows_hopper`: partial sums are merged if shared, scaled, and stored, or
added to the residual stream first."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from twolane.engine.kernels.gluon_names import barrier


@gluon.jit
def merge(
    low, high, rest_low, rest_high, partials, counters, tile, begin, end, n_tiles, n_chunks,
    HALF: gl.constexpr, ROWS: gl.constexpr, REST: gl.constexpr, PAIR: gl.constexpr,
    LAYOUT: gl.constexpr, REST_LAYOUT: gl.constexpr,
):  # fmt: skip
    """(the sums, whether they are complete) for this program's chunks begin to end of a tile. The
    program with the last chunk adds the partial sums of the others, in their order."""
    VALUES: gl.constexpr = (1 + PAIR) * HALF * (ROWS + REST)
    program, programs = gl.program_id(0), gl.num_programs(0)
    all_chunks = n_tiles * n_chunks
    finishes = end == (tile + 1) * n_chunks
    if not finishes:
        own = partials + program * VALUES
        _store_partial(own, low, high, HALF, ROWS, PAIR, LAYOUT)
        if REST:
            own += (1 + PAIR) * HALF * ROWS
            _store_partial(own, rest_low, rest_high, HALF, REST, PAIR, REST_LAYOUT)
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
            theirs = partials + other * VALUES
            low, high = _add_partial(theirs, low, high, HALF, ROWS, PAIR, LAYOUT)
            if REST:
                theirs += (1 + PAIR) * HALF * ROWS
                rest_low, rest_high = _add_partial(
                    theirs, rest_low, rest_high, HALF, REST, PAIR, REST_LAYOUT
                )
        gl.store(counters + program, 0)
    return low, high, rest_low, rest_high, finishes


@gluon.jit
def _place_in_partial(HALF: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    unit = gl.arange(0, HALF, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    return unit * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(0, LAYOUT))[None, :]


@gluon.jit
def _store_partial(
    to, low, high, HALF: gl.constexpr, ROWS: gl.constexpr, PAIR: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    place = _place_in_partial(HALF, ROWS, LAYOUT)
    gl.store(to + place, low)
    if PAIR:
        gl.store(to + HALF * ROWS + place, high)


@gluon.jit
def _add_partial(
    stored, low, high, HALF: gl.constexpr, ROWS: gl.constexpr, PAIR: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    place = _place_in_partial(HALF, ROWS, LAYOUT)
    low += gl.load(stored + place, cache_modifier=".cg")
    if PAIR:
        high += gl.load(stored + HALF * ROWS + place, cache_modifier=".cg")
    return low, high


@gluon.jit
def load_scales(
    scales, first_low, first_high, n_out,
    HALF: gl.constexpr, PAIR: gl.constexpr, GATED: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """The scales of an FP8 tile's outputs, of both halves: loaded before its sums are there."""
    unit = gl.arange(0, HALF, layout=gl.SliceLayout(1, LAYOUT))
    low = gl.load(scales + first_low + unit, mask=first_low + unit < n_out)
    high = low
    if PAIR:
        keep_high = first_high + unit < n_out * (2 if GATED else 1)
        high = gl.load(scales + first_high + unit, mask=keep_high)
    return low, high


@gluon.jit
def hold_scales(
    row_scales, factors, n_rows, FIRST: gl.constexpr, ROWS: gl.constexpr, WARPS: gl.constexpr
):  # fmt: skip
    """The scales of FP8 rows from FIRST on, into `factors` [ROWS] of shared memory."""
    row = FIRST + gl.arange(0, ROWS, layout=gl.BlockedLayout([1], [32], [WARPS], [0]))
    factors.store(gl.load(row_scales + row, mask=row < n_rows, other=0.0))
    barrier()


@gluon.jit
def _add_bias(
    low, high, first_low, first_high, bias, n_out,
    HALF: gl.constexpr, PAIR: gl.constexpr, GATED: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    unit = gl.arange(0, HALF, layout=gl.SliceLayout(1, LAYOUT))
    added = gl.load(bias + first_low + unit, mask=first_low + unit < n_out, other=0.0)
    low += added.to(gl.float32)[:, None]
    if PAIR:
        keep_high = first_high + unit < n_out * (2 if GATED else 1)
        added = gl.load(bias + first_high + unit, mask=keep_high, other=0.0)
        high += added.to(gl.float32)[:, None]
    return low, high


@gluon.jit
def finish(
    low, high, first_low, first_high, out, bias, n_rows, n_out,
    HALF: gl.constexpr, FIRST: gl.constexpr, ROWS: gl.constexpr, PAIR: gl.constexpr,
    GATED: gl.constexpr, BIASED: gl.constexpr, LAYOUT: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Of ROWS rows from FIRST on: add bias, apply the gate, round, transpose, store."""
    WIDE: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, WARPS], [0, 1])
    if BIASED:
        low, high = _add_bias(
            low, high, first_low, first_high, bias, n_out, HALF, PAIR, GATED, LAYOUT
        )
    row = FIRST + gl.arange(0, ROWS, layout=gl.SliceLayout(0, WIDE))[None, :]
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
def find_factors(
    squares, factors, n_parts, mean_share, epsilon,
    FIRST: gl.constexpr, ROWS: gl.constexpr, ROWS_PAD: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Into `factors` [ROWS] of shared memory: of each row from FIRST on 1 / sqrt(mean of squares +
    epsilon), from the sums of squares `[n_parts, ROWS_PAD]`, added in a fixed order."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 1], [4, 8], [1, WARPS], [1, 0])
    PARTS: gl.constexpr = 64 if ROWS <= 64 else 32  # at once: as many as registers hold
    row = FIRST + gl.arange(0, ROWS, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    nth = gl.arange(0, PARTS, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(0, LAYOUT))
    for part in range(0, n_parts, PARTS):
        at = squares + (part + nth) * ROWS_PAD + row
        total += gl.sum(gl.load(at, mask=part + nth < n_parts, other=0.0), 0)
    of_rows = gl.rsqrt(total * mean_share + epsilon)
    factors.store(of_rows)
    barrier()


@gluon.jit
def scale_rows(low, high, factors, PAIR: gl.constexpr, LAYOUT: gl.constexpr):
    """(low, high), times the factor of each row."""
    of_row = factors.load(gl.SliceLayout(0, LAYOUT))[None, :]
    low *= of_row
    if PAIR:
        high *= of_row
    return low, high


@gluon.jit
def _place(
    first, n_rows, n_out,
    HALF: gl.constexpr, FIRST: gl.constexpr, ROWS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """(where, whether there) of the outputs of half a tile, as they are stored."""
    WIDE: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, WARPS], [0, 1])
    row = FIRST + gl.arange(0, ROWS, layout=gl.SliceLayout(0, WIDE))[None, :]
    output = first + gl.arange(0, HALF, layout=gl.SliceLayout(1, WIDE))[:, None]
    return row.to(gl.int64) * n_out + output, (row < n_rows) & (output < n_out)


@gluon.jit
def load_norm(
    norm, first_low, first_high, is_needed, n_out,
    HALF: gl.constexpr, PAIR: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """The weights of the norm of both halves of a tile: loaded before the tile's sums are there."""
    WIDE: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, WARPS], [0, 1])
    output = first_low + gl.arange(0, HALF, layout=gl.SliceLayout(1, WIDE))
    low = gl.load(norm + output, mask=(output < n_out) & is_needed, other=0.0)
    high = low
    if PAIR:
        output = first_high + gl.arange(0, HALF, layout=gl.SliceLayout(1, WIDE))
        high = gl.load(norm + output, mask=(output < n_out) & is_needed, other=0.0)
    return low, high


@gluon.jit
def load_residual(
    residual, first_low, first_high, is_needed, n_rows, n_out,
    HALF: gl.constexpr, FIRST: gl.constexpr, ROWS: gl.constexpr, PAIR: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """The residual stream at both halves of a tile, of ROWS rows from FIRST on: loaded before the
    tile's sums are there."""
    at, keep = _place(first_low, n_rows, n_out, HALF, FIRST, ROWS, WARPS)
    low = gl.load(residual + at, mask=keep & is_needed, other=0.0)
    high = low
    if PAIR:
        at, keep = _place(first_high, n_rows, n_out, HALF, FIRST, ROWS, WARPS)
        high = gl.load(residual + at, mask=keep & is_needed, other=0.0)
    return low, high


@gluon.jit
def _add_half(
    half, held, of_output, first, out, residual, n_rows, n_out,
    HALF: gl.constexpr, FIRST: gl.constexpr, ROWS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Adds half a tile to the residual `held`; returns its sums of squares, one for each row."""
    WIDE: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, WARPS], [0, 1])
    at, keep = _place(first, n_rows, n_out, HALF, FIRST, ROWS, WARPS)
    added = gl.convert_layout(half.to(out.dtype.element_ty), WIDE).to(gl.float32)
    rounded = (added + held.to(gl.float32)).to(residual.dtype.element_ty)
    gl.store(residual + at, rounded, mask=keep)
    total = rounded.to(gl.float32)  # what the next addition will read
    scaled = total * of_output.to(gl.float32)[:, None]
    gl.store(out + at, scaled.to(out.dtype.element_ty), mask=keep)
    return gl.sum(gl.where(keep, total * total, 0.0), 0)


@gluon.jit
def add(
    low, high, held_low, held_high, norm_low, norm_high, tile, first_low, first_high, out, bias,
    residual, squares, n_rows, n_out,
    HALF: gl.constexpr, FIRST: gl.constexpr, ROWS: gl.constexpr, ROWS_PAD: gl.constexpr,
    PAIR: gl.constexpr, BIASED: gl.constexpr, LAYOUT: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Instead of `finish`: residual = what was held of it + the tile, rounded as if it was stored;
    out = the residual times the weight of its norm; squares[tile] = the sums of its squares by
    row."""
    WIDE: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, WARPS], [0, 1])
    if BIASED:
        low, high = _add_bias(
            low, high, first_low, first_high, bias, n_out, HALF, PAIR, False, LAYOUT
        )
    total = _add_half(
        low, held_low, norm_low, first_low, out, residual, n_rows, n_out, HALF, FIRST, ROWS, WARPS
    )
    if PAIR:
        total += _add_half(
            high, held_high, norm_high, first_high, out, residual, n_rows, n_out,
            HALF, FIRST, ROWS, WARPS,
        )  # fmt: skip
    row = FIRST + gl.arange(0, ROWS, layout=gl.SliceLayout(0, WIDE))
    gl.store(squares + tile * ROWS_PAD + row, total)
