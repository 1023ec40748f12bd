"""`few_rows_product` in plain Triton, for the interpreter, which runs no Gluon.

It shares the plan, the checks and the arguments with `few_rows_product`, not the kernel: what
passes with it shows that a product is cut rightly, into tiles, chunks and parts to be added. That
`few_rows_hopper` computes them rightly is shown only on a card (tests/gpu/test_few_rows.py).
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from twolane.engine.kernels.products.few_rows import PartialSums, checked_arguments, unnormed
from twolane.engine.kernels.products.few_rows_plan import FewRowsConfig, config_for, pad_rows
from twolane.engine.kernels.products.unnormed import Residual, Unnormed
from twolane.engine.model_files.fp8 import Fp8Rows, Matrix


def general_few_rows_product(
    x: Matrix | Unnormed,
    weight: Matrix,
    *,
    out: torch.Tensor,
    sums: PartialSums,
    bias: torch.Tensor | None = None,
    gated: bool = False,
    residual: Residual | None = None,
    config: FewRowsConfig | None = None,
    pdl: int = 0,
) -> Unnormed | None:
    """As `few_rows_product`, of any dtype."""
    rows, inner = x.shape
    config = config or config_for(rows, out.shape[1], inner, gated=gated)
    rows_pad = max(16, 1 << (pad_rows(rows) - 1).bit_length())  # in one part
    arguments = checked_arguments(
        x, weight, out=out, sums=sums, bias=bias, gated=gated, residual=residual, config=config,
        rows_pad=rows_pad,
    )  # fmt: skip
    descriptors = (
        TensorDescriptor(t, list(t.shape), list(t.stride()), [block, config.block_in])
        for t, block in ((values(x), rows_pad), (values(weight), config.half))
    )
    general_kernel[(config.programs,)](
        *descriptors,
        *arguments,
        HALF=config.half,
        ROWS=rows_pad,
        BLOCK_IN=config.block_in,
        STAGES=config.stages,
        SPLIT=config.split,
        PAIR=config.pair,
        GATED=gated,
        BIASED=bias is not None,
        SCALED=isinstance(x, Fp8Rows),
        NORMED=isinstance(x, Unnormed),
        ADDS=residual is not None,
        num_warps=config.warps,
    )
    return unnormed(out, residual, sums, config, rows_pad)


def values(matrix: Matrix | Unnormed) -> torch.Tensor:
    return matrix if isinstance(matrix, torch.Tensor) else matrix.values


@triton.jit
def _outputs(tile, n_out, HALF: tl.constexpr, PAIR: tl.constexpr, GATED: tl.constexpr):
    """(first low output, first high output) of a tile."""
    low = tile * HALF
    high = low + n_out  # from a gate to its up
    if PAIR and not GATED:
        low = tile * (2 * HALF)
        high = low + HALF
    return low, high


@triton.jit
def _merge(
    low, high, partials, counters, tile, begin, end, n_tiles, n_chunks,
    HALF: tl.constexpr, ROWS: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """(low, high, whether they are whole) of this program's chunks begin to end of a tile. Who has
    the last chunk adds what the others left, in their order."""
    VALUES: tl.constexpr = (1 + PAIR) * HALF * ROWS
    unit = tl.arange(0, HALF)[:, None]
    row = tl.arange(0, ROWS)[None, :]
    place = unit * ROWS + row  # in one half of a part
    program, programs = tl.program_id(0), tl.num_programs(0)
    all_chunks = n_tiles * n_chunks
    finishes = end == (tile + 1) * n_chunks
    if not finishes:
        own = partials + program * VALUES + place
        tl.store(own, low)
        if PAIR:
            tl.store(own + HALF * ROWS, high)
        # Every thread's stores, then the release; the acquire, then every thread's loads.
        tl.debug_barrier()
        last = ((tile + 1) * n_chunks * programs - 1) // all_chunks
        tl.atomic_add(counters + last, 1, sem="release")
    elif begin > tile * n_chunks:
        first = ((tile * n_chunks + 1) * programs - 1) // all_chunks
        came = 0
        while came < program - first:
            came = tl.atomic_add(counters + program, 0, sem="acquire")
        tl.debug_barrier()
        for other in range(first, program):
            theirs = partials + other * VALUES + place
            low += tl.load(theirs, cache_modifier=".cg")
            if PAIR:
                high += tl.load(theirs + HALF * ROWS, cache_modifier=".cg")
        tl.store(counters + program, 0)
    return low, high, finishes


@triton.jit
def _store(
    low, high, first_low, first_high, out, bias, n_rows, n_out,
    HALF: tl.constexpr, ROWS: tl.constexpr, PAIR: tl.constexpr, GATED: tl.constexpr,
    BIASED: tl.constexpr,
):  # fmt: skip
    """Bias, gate, round, store."""
    unit = tl.arange(0, HALF)[:, None]
    row = tl.arange(0, ROWS)[None, :]
    keep_low = first_low + unit < n_out
    keep_high = first_high + unit < n_out * (2 if GATED else 1)
    if BIASED:
        low += tl.load(bias + first_low + unit, mask=keep_low, other=0.0).to(tl.float32)
        if PAIR:
            high += tl.load(bias + first_high + unit, mask=keep_high, other=0.0).to(tl.float32)
    at = out + row.to(tl.int64) * n_out + first_low + unit
    if GATED:
        low = low / (1.0 + tl.exp(-low)) * high
    elif PAIR:
        tl.store(at + HALF, high, mask=keep_high & (row < n_rows))
    tl.store(at, low, mask=keep_low & (row < n_rows))


@triton.jit
def _add_half(
    half, first, out, residual, norm, n_rows, n_out, HALF: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Add to the residual, store what its norm will be made of; the sums of squares by row."""
    output = first + tl.arange(0, HALF)[:, None]
    row = tl.arange(0, ROWS)[None, :]
    keep = (output < n_out) & (row < n_rows)
    at = row.to(tl.int64) * n_out + output
    total = half.to(out.dtype.element_ty).to(tl.float32)
    total += tl.load(residual + at, mask=keep, other=0.0).to(tl.float32)
    tl.store(residual + at, total, mask=keep)
    total = total.to(residual.dtype.element_ty).to(tl.float32)
    tl.store(out + at, total * tl.load(norm + output, mask=output < n_out, other=0.0), mask=keep)
    return tl.sum(tl.where(keep, total * total, 0.0), 0)


@triton.jit(do_not_specialize=["n_rows", "n_tiles", "n_chunks", "n_parts"])
def general_kernel(
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
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    STAGES: tl.constexpr,
    SPLIT: tl.constexpr,
    PAIR: tl.constexpr,
    GATED: tl.constexpr,
    BIASED: tl.constexpr,
    SCALED: tl.constexpr,
    NORMED: tl.constexpr,
    ADDS: tl.constexpr,
):
    programs = tl.num_programs(0)
    each = 1 if SPLIT else n_chunks
    units = n_tiles * n_chunks if SPLIT else n_tiles
    all_begin = tl.program_id(0) * units // programs * each
    all_end = (tl.program_id(0) + 1) * units // programs * each
    middle = tl.minimum(tl.cdiv(all_begin, n_chunks) * n_chunks, all_end)
    n_front = tl.cdiv(all_end - middle, n_chunks)
    for nth in range(n_front + (middle > all_begin).to(tl.int32)):
        tile = middle // n_chunks + nth
        begin = tile * n_chunks
        end = tl.minimum(all_end, begin + n_chunks)
        if nth == n_front:
            tile = all_begin // n_chunks
            begin = all_begin
            end = middle
        first_low, first_high = _outputs(tile, n_out, HALF, PAIR, GATED)
        low = tl.zeros([HALF, ROWS], tl.float32)
        high = tl.zeros([HALF, ROWS], tl.float32)
        for chunk in tl.range(begin, end, num_stages=STAGES):
            column = (chunk - tile * n_chunks) * BLOCK_IN
            # In float32, without a loss: the interpreter multiplies no bfloat16.
            turned = tl.trans(x.load([0, column]).to(tl.float32))
            below = weight.load([first_low, column]).to(tl.float32)
            low = tl.dot(below, turned, low, input_precision="ieee")
            if PAIR:
                above = weight.load([first_high, column]).to(tl.float32)
                high = tl.dot(above, turned, high, input_precision="ieee")
        whole = True
        if SPLIT:
            low, high, whole = _merge(
                low, high, partials, counters, tile, begin, end, n_tiles, n_chunks,
                HALF, ROWS, PAIR,
            )  # fmt: skip
        if whole:
            if SCALED:
                unit, row = tl.arange(0, HALF)[:, None], tl.arange(0, ROWS)[None, :]
                of_row = tl.load(row_scales + row, mask=row < n_rows, other=0.0)
                low *= of_row * tl.load(
                    scales + first_low + unit, mask=first_low + unit < n_out, other=0.0
                )
                if PAIR:
                    at, keep = first_high + unit, n_out * (2 if GATED else 1)
                    high *= of_row * tl.load(scales + at, mask=at < keep, other=0.0)
            if NORMED:
                total = tl.zeros([ROWS], tl.float32)
                for part in range(n_parts):
                    total += tl.load(squares + part * ROWS + tl.arange(0, ROWS))
                root = tl.rsqrt(total * mean_share + epsilon)[None, :]
                low *= root
                high *= root
            if ADDS:
                if BIASED:
                    unit = tl.arange(0, HALF)[:, None]
                    at = first_low + unit
                    low += tl.load(bias + at, mask=at < n_out, other=0.0).to(tl.float32)
                    at = first_high + unit
                    high += tl.load(bias + at, mask=at < n_out, other=0.0).to(tl.float32)
                parts = _add_half(low, first_low, out, residual, norm, n_rows, n_out, HALF, ROWS)
                if PAIR:
                    parts += _add_half(
                        high, first_high, out, residual, norm, n_rows, n_out, HALF, ROWS
                    )
                tl.store(squares + tile * ROWS + tl.arange(0, ROWS), parts)
            else:
                _store(
                    low, high, first_low, first_high, out, bias, n_rows, n_out,
                    HALF, ROWS, PAIR, GATED, BIASED,
                )  # fmt: skip
