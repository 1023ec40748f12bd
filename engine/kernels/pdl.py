"""Programmatic dependent launch: a kernel's start overlaps its predecessor's end.

    kernel A   ready .......... work .......... stores, end
    kernel B          starts, waits in ready ............. | work

`ready` returns when all that came before on the stream is done and visible, also where the launch
did not ask for the overlap, and lets the next kernel start once every program of this one runs. A
kernel calls it before it touches memory that another one writes, and before its first store: so a
chain of them is safe as a whole. A wait ends when the launch before has ended, which itself has
waited for the one before it: so EARLY, which lets the next kernel start before the wait, is as
safe, and several launches may then stand in line on a multiprocessor.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# What `pdl` says, here and in every kernel's wrapper:
APART = 0  # the launch waits for the one before
OVERLAP = 1  # it does not, and lets the next one start after the wait
EARLY = 2  # or before it


@triton.jit
def ready(PDL: tl.constexpr):
    if PDL == 2:
        gdc_launch_dependents()
    if PDL:
        gdc_wait()
    if PDL == 1:
        gdc_launch_dependents()
