"""Layouts of boxes that the tensor memory accelerator copies, each computed once: computing one
takes 6 us, and a prompt's pass has hundreds of launches."""

# mypy: disable-error-code="no-untyped-call"

from functools import cache

import torch
from triton.experimental.gluon import language as gl

_ELEMENTS = {
    torch.bfloat16: gl.bfloat16,
    torch.float16: gl.float16,
    torch.float8_e4m3fn: gl.float8e4nv,
}


@cache
def box_layout(rows: int, columns: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    """Of a box `[rows, columns]` of bfloat16, float16 or FP8 in shared memory."""
    return gl.NVMMASharedLayout.get_default_for([rows, columns], _ELEMENTS[dtype])
