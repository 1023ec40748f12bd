"""Programmatic dependent launch: a kernel's start overlaps its predecessor's end.

    kernel A   ready .......... work .......... stores, end
    kernel B          starts, waits in ready ............. | work

`ready` returns when all that came before on the stream is done and visible, also where the launch
did not ask for the overlap, and lets the next kernel start once every program of this one runs. A
kernel calls it before it touches memory that another one writes, and before its first store: so a
chain of them is safe as a whole.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def ready(PDL: tl.constexpr):
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
