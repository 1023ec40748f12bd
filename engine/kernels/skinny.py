"""Products of 1 to 128 rows with a weight matrix, at the speed at which the weights can be read.

Bytes: the weights once (out * in * itemsize), from memory; the rows once a tile of outputs, and the
partial sums of split tiles once each way, from the second-level cache. With `gated`, silu(gate) *
up follows in the registers, and what it saves is a launch and two trips of [rows, 2 * units].

Sums are in float32, in an order that the configuration fixes: the same call gives the same bits.
The general kernel here serves any card and the interpreter; `skinny_hopper` is the quick one.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from functools import cache

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from engine.kernels.launch import ready
from engine.kernels.skinny_plan import (
    MAX_ROWS,
    PARTIAL_VALUES,
    SkinnyConfig,
    config_for,
    pad_rows,
    tiles_for,
)


class PartialSums:
    """Where split products leave their parts; one of these a stream. `counters` are zero between
    launches."""

    def __init__(
        self, device: torch.device | str, *, values: int = PARTIAL_VALUES, tiles: int = 4096
    ):
        self.values = torch.empty(values, dtype=torch.float32, device=device)
        self.counters = torch.zeros(tiles, dtype=torch.int32, device=device)


@triton.jit
def _place(
    nth, splits, n_chunks, n_out, HALF: tl.constexpr, PAIR: tl.constexpr, GATED: tl.constexpr
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


@triton.jit(do_not_specialize=["n_rows", "n_items", "splits", "n_chunks"])
def _skinny_kernel(
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
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    STAGES: tl.constexpr,
    SPLIT: tl.constexpr,
    PAIR: tl.constexpr,
    GATED: tl.constexpr,
    BIASED: tl.constexpr,
    PDL: tl.constexpr,
):
    ready(PDL)
    place = tl.arange(0, HALF)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    for item in range(tl.program_id(0), n_items, tl.num_programs(0)):
        first_low, first_high, begin, end = _place(item, splits, n_chunks, n_out, HALF, PAIR, GATED)
        low = tl.zeros([HALF, ROWS], tl.float32)
        high = tl.zeros([HALF, ROWS], tl.float32)
        for chunk in tl.range(begin, end, num_stages=STAGES):
            column = chunk * BLOCK_IN
            turned = tl.trans(x.load([0, column]))
            low = tl.dot(weight.load([first_low, column]), turned, low, input_precision="ieee")
            if PAIR:
                above = weight.load([first_high, column])
                high = tl.dot(above, turned, high, input_precision="ieee")
        if SPLIT:
            own = partials + item * ((1 + PAIR) * HALF * ROWS) + place
            tl.store(own, low)
            if PAIR:
                tl.store(own + HALF * ROWS, high)
            # Every thread's stores, then the release; the acquire, then every thread's loads.
            tl.debug_barrier()
            tile = item // splits
            if tl.atomic_add(counters + tile, 1, sem="acq_rel") == splits - 1:
                tl.debug_barrier()
                low = tl.zeros([HALF, ROWS], tl.float32)
                high = tl.zeros([HALF, ROWS], tl.float32)
                for split in range(splits):
                    nth = tile * splits + split
                    theirs = partials + nth * ((1 + PAIR) * HALF * ROWS) + place
                    low += tl.load(theirs, cache_modifier=".cg")
                    if PAIR:
                        high += tl.load(theirs + HALF * ROWS, cache_modifier=".cg")
                _store(
                    low, high, first_low, first_high, out, bias, n_rows, n_out,
                    HALF, ROWS, PAIR, GATED, BIASED,
                )  # fmt: skip
                tl.store(counters + tile, 0)
        else:
            _store(
                low, high, first_low, first_high, out, bias, n_rows, n_out,
                HALF, ROWS, PAIR, GATED, BIASED,
            )  # fmt: skip


def skinny(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    out: torch.Tensor,
    sums: PartialSums,
    bias: torch.Tensor | None = None,
    gated: bool = False,
    config: SkinnyConfig | None = None,
    general: bool | None = None,
    pdl: int = 0,
) -> None:
    """x `[rows, in]` times weight `[out, in]` transposed, plus bias [out] -> out `[rows, out]`.

    With `gated`, weight is `[2 * units, in]` (gates, ups), bias likewise, and out `[rows, units]` =
    silu(gate) * up. Rows of x and weight must start at multiples of 16 bytes; out is dense.
    `weight` must not change while the stream runs: with `pdl` its first bytes are read before the
    kernels launched before this one have ended. `general`: the kernel to take; None decides.

    Asserted: 1 to 128 rows, shapes, strides, room for partial sums.
    """
    rows, inner = x.shape
    n_out = out.shape[1]
    general = not can_stream(x) if general is None else general
    config = config or config_for(rows, n_out, inner, gated=gated)
    rows_pad = max(16, pad_rows(rows)) if general else pad_rows(rows)
    n_tiles = tiles_for(n_out, config, gated=gated)
    assert config.pair or not gated
    assert 1 <= rows <= MAX_ROWS
    assert weight.shape == (n_out * (1 + gated), inner)
    assert len(out) == rows
    assert x.dtype == weight.dtype
    assert x.stride(1) == weight.stride(1) == 1
    assert all(t.stride(0) * t.itemsize % 16 == 0 and t.data_ptr() % 16 == 0 for t in (x, weight))
    assert out.is_contiguous()
    assert config.partial_values(n_tiles, rows_pad) <= sums.values.numel()
    assert config.splits == 1 or n_tiles <= len(sums.counters)
    n_chunks = triton.cdiv(inner, config.block_in)
    arguments = (
        out,
        weight if bias is None else bias,
        sums.values,
        sums.counters,
        rows,
        n_out,
        n_tiles * config.splits,
        config.splits,
        n_chunks,
    )
    if not general:
        from engine.kernels.skinny_launch import launch_streamed

        launch_streamed(
            x, weight, arguments,
            config=config, rows_pad=rows_pad, gated=gated, biased=bias is not None, pdl=pdl,
        )  # fmt: skip
        return
    descriptors = (
        TensorDescriptor(t, list(t.shape), list(t.stride()), [block, config.block_in])
        for t, block in ((x, rows_pad), (weight, config.half))
    )
    _skinny_kernel[(config.programs,)](
        *descriptors,
        *arguments,
        HALF=config.half,
        ROWS=rows_pad,
        BLOCK_IN=config.block_in,
        STAGES=config.stages,
        SPLIT=config.splits > 1,
        PAIR=config.pair,
        GATED=gated,
        BIASED=bias is not None,
        PDL=pdl,
        num_warps=config.warps,
        launch_pdl=pdl,
    )


def can_stream(x: torch.Tensor) -> bool:
    """Whether `skinny_hopper` takes x's dtype and card."""
    return x.dtype in (torch.bfloat16, torch.float16) and _is_hopper(x.device)


@cache
def _is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9
