"""Products of FP8 weights and FP8 rows: cuBLAS or CUTLASS through torch.

    out[i, j] = sum over k of x[i, k] * weight[j, k]    * x.scales[i] * weight.scales[j]

Rows come as FP8 from the kernel that computed them (norm, silu), or are rounded here. For one or
two rows `Products` uses another kernel: only weights cost time then, and rows stay unquantised.
"""

from __future__ import annotations

import torch

from twolane.engine.kernels.rows.quantise import quantise_rows
from twolane.engine.model_files.fp8 import Fp8Rows

FAST = True  # accumulate in the tensor cores, without float32 registers every 128 terms


def fp8_product(
    x: torch.Tensor | Fp8Rows, weight: Fp8Rows, *, dtype: torch.dtype, pdl: int
) -> torch.Tensor:
    """x `[n, in]` times `[out, in]` transposed: a new `[n, out]` of `dtype`."""
    if not isinstance(x, Fp8Rows):
        rows = Fp8Rows.empty(len(x), x.shape[1], device=x.device)
        quantise_rows(x, out=rows, pdl=pdl)
        x = rows
    if x.values.is_meta:
        return x.values.new_empty(len(x), len(weight), dtype=dtype)
    if x.values.device.type != "cuda":
        return torch.mm(x.dequantise(), weight.dequantise().t()).to(dtype)
    return torch._scaled_mm(
        x.values,
        weight.values.t(),
        scale_a=x.scales[:, None],
        scale_b=weight.scales[None, :],
        out_dtype=dtype,
        use_fast_accum=FAST,
    )
