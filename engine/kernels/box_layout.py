"""Layouts of boxes that the tensor memory accelerator copies, each computed once: computing one
takes 6 us, and a prompt's pass has hundreds of launches."""

# mypy: disable-error-code="no-untyped-call"

from functools import cache

import torch
from triton.experimental.gluon import language as gl


@cache
def box_layout(rows: int, columns: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    """Of a box `[rows, columns]` of bfloat16 or float16 in shared memory."""
    element = gl.bfloat16 if dtype == torch.bfloat16 else gl.float16
    return gl.NVMMASharedLayout.get_default_for([rows, columns], element)
