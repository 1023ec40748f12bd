"""Launches `few_rows_hopper`'s kernel."""

from typing import Any

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from twolane.engine.kernels.launch import launch
from twolane.engine.kernels.products.few_rows import with_padding
from twolane.engine.kernels.products.few_rows_hopper import streamed_kernel
from twolane.engine.kernels.products.few_rows_plan import FewRowsConfig

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
    element = gl.bfloat16 if x.dtype == torch.bfloat16 else gl.float16
    launch(streamed_kernel, (config.programs,))(
        *(
            TensorDescriptor(
                t, list(t.shape), list(t.stride()), [block, config.block_in],
                gl.NVMMASharedLayout.get_default_for([block, config.block_in], element),
            )
            for t, block in ((with_padding(x, rows_pad), rows_pad), (weight, config.half))
        ),
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
