"""Casts to and from FP8 as a card does them, for Triton's interpreter.

Its own drop the carry of a rounding into the exponent (31.4 becomes 16) and break small numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock


@contextmanager
def sound_fp8_casts() -> Iterator[None]:
    """Casts between e4m3 and other floats go through torch meanwhile, saturating as hardware's."""
    import numpy as np
    import torch
    from triton import language as tl
    from triton.runtime import interpreter

    theirs = interpreter._convert_float
    wide = {tl.float16: (np.float16, np.uint16), tl.float32: (np.float32, np.uint32)}

    def convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if target == tl.float8e4nv and source in wide:
            values = torch.from_numpy(np.ascontiguousarray(data).view(wide[source][0]).copy())
            small = values.float().clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
            return small.view(torch.uint8).numpy()
        if source == tl.float8e4nv and target in wide:
            values = torch.from_numpy(np.ascontiguousarray(data).view(np.uint8).copy())
            held = values.view(torch.float8_e4m3fn).float().numpy()
            return held.astype(wide[target][0]).view(wide[target][1])
        return theirs(data, source, target, rounding)

    with mock.patch.object(interpreter, "_convert_float", convert):
        yield
