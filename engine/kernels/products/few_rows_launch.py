"""Launches `few_rows_hopper`'s kernel.

Triton's own launch spends 23 us in Python, most of it to find the variant; to launch a variant that
is known takes 12 (one core of a CPU, without the driver's part). A pass of 32 layers has 128.
"""

from dataclasses import dataclass
from typing import Any

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from twolane.engine.kernels.box_layout import box_layout
from twolane.engine.kernels.launch import launch
from twolane.engine.kernels.products.few_rows_hopper import streamed_kernel
from twolane.engine.kernels.products.few_rows_plan import FewRowsConfig, parts_of
from twolane.engine.kernels.products.row_padding import rows_with_padding

_FETCH_REGISTERS = 24
_ALIGNED = 16  # bytes, and values: what Triton builds variants for
_known: dict[tuple[Any, ...], Any] = {}  # compiled kernels by variant


def launch_streamed(
    x: torch.Tensor,
    weight: torch.Tensor,
    arguments: tuple[Any, ...],
    *,
    config: FewRowsConfig,
    rows_pad: int,
    gated: bool,
    biased: bool,
    scaled: bool,
    normed: bool,
    adds: bool,
    pdl: int,
) -> None:
    """Like `few_rows_product`, which checks the arguments; `arguments`: the kernel's, after x and
    weight."""
    pointers = arguments[:9]
    out, bias, *_, norm, _ = pointers
    n_out = arguments[10]
    first, rest = parts_of(rows_pad)
    constants = (
        config.half, first, rest, config.block_in, config.stages, config.split, config.pair, gated,
        biased, scaled, normed, adds, config.warps, _FETCH_REGISTERS, pdl,
    )  # fmt: skip
    # All that a variant depends on; row counts, tiles and chunks are not specialised.
    variant = (
        x.device, x.dtype, out.dtype, bias.dtype, norm.dtype, constants, n_out == 1,
        n_out % _ALIGNED == 0, *(t.data_ptr() % _ALIGNED == 0 for t in pointers),
    )  # fmt: skip
    grid = (config.programs, 1, 1)
    n_rows = rows_with_padding(x, rows_pad)
    compiled = _known.get(variant)
    if compiled is not None:
        compiled[grid](
            _Matrix(x, [n_rows, x.shape[1]], [x.stride(0), 1]),
            _Matrix(weight, [len(weight), weight.shape[1]], [weight.stride(0), 1]),
            *arguments,
            *constants,
        )
        return
    compiled = launch(streamed_kernel, grid)(
        _descriptor(x, n_rows, rest or first, config.block_in),
        _descriptor(weight, len(weight), config.half, config.block_in),
        *arguments,
        *constants,
        num_warps=config.warps,
        maxnreg=config.registers(rows_pad),
        launch_pdl=pdl,
    )
    if compiled is not None:  # launched
        _known[variant] = compiled


@dataclass(frozen=True, slots=True)
class _Matrix:
    """As much of a tensor descriptor as a compiled kernel reads of it."""

    base: torch.Tensor
    shape: list[int]
    strides: list[int]
    padding: str = "zero"


def _descriptor(t: torch.Tensor, rows: int, block: int, block_in: int) -> TensorDescriptor:
    """Of that many rows from where t begins, in boxes `[block, block_in]`."""
    layout = box_layout(block, block_in, t.dtype)
    return TensorDescriptor(t, [rows, t.shape[1]], [t.stride(0), 1], [block, block_in], layout)
