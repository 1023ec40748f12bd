"""Launches `few_rows_hopper`'s kernel."""

from typing import Any

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from twolane.engine.kernels.box_layout import box_layout
from twolane.engine.kernels.launch import launch
from twolane.engine.kernels.products.few_rows_hopper import streamed_kernel
from twolane.engine.kernels.products.few_rows_plan import FewRowsConfig
from twolane.engine.kernels.products.row_padding import rows_with_padding

_FETCH_REGISTERS = 24


def launch_streamed(
    x: torch.Tensor,
    weight: torch.Tensor,
    arguments: tuple[Any, ...],
    *,
    config: FewRowsConfig,
    rows_pad: int,
    gated: bool,
    biased: bool,
    pdl: int,
) -> None:
    """Like `few_rows_product`, which checks the arguments; `arguments`: the kernel's, after x and
    weight."""
    launch(streamed_kernel, (config.programs,))(
        _descriptor(x, rows_with_padding(x, rows_pad), rows_pad, config.block_in),
        _descriptor(weight, len(weight), config.half, config.block_in),
        *arguments,
        HALF=config.half,
        ROWS=rows_pad,
        BLOCK_IN=config.block_in,
        STAGES=config.stages,
        SPLIT=config.split,
        PAIR=config.pair,
        GATED=gated,
        BIASED=biased,
        WARPS=config.warps,
        FETCH_REGISTERS=_FETCH_REGISTERS,
        PDL=pdl,
        num_warps=config.warps,
        maxnreg=config.registers(rows_pad),
        launch_pdl=pdl,
    )  # fmt: skip


def _descriptor(t: torch.Tensor, rows: int, block: int, block_in: int) -> TensorDescriptor:
    """Of that many rows from where t begins, in boxes `[block, block_in]`."""
    layout = box_layout(block, block_in, t.dtype)
    return TensorDescriptor(t, [rows, t.shape[1]], [t.stride(0), 1], [block, block_in], layout)
