"""Programmatic dependent launch (PDL): a kernel's start overlaps its predecessor's end.

    kernel A   ready .......... work .......... stores, end
    kernel B          starts, waits in ready ............. | work

`ready` returns when all earlier work of the stream is done and visible (also for launches without
overlap), and lets the next kernel start once every program of this one runs. A kernel calls it
before it accesses memory that another kernel writes, and before its first store: so a chain of such
kernels is safe. A wait ends when the previous launch has ended, which itself waited for the one
before: so EARLY, which lets the next kernel start before the wait, is safe too; several launches
may then be queued on an SM.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# Values of `pdl`, here and in every kernel's wrapper:
APART = 0  # the launch waits for the previous one
OVERLAP = 1  # it starts early, and lets the next one start after its own wait
EARLY = 2  # it starts early, and lets the next one start before its own wait


@triton.jit
def ready(PDL: tl.constexpr):
    if PDL == 2:
        gdc_launch_dependents()
    if PDL:
        gdc_wait()
    if PDL == 1:
        gdc_launch_dependents()
