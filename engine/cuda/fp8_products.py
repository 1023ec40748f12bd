"""Products of FP8 weights and FP8 rows: cuBLAS or CUTLASS through torch.

    out[i, j] = sum over k of x[i, k] * weight[j, k]    * x.scales[i] * weight.scales[j]

Rows come as FP8 from the kernel that computed them (norm, silu), or are rounded here. For few rows
`Products` uses kernels of our own.
"""

from __future__ import annotations

import torch

from twolane.engine.kernels.launch import note_call
from twolane.engine.kernels.products.row_padding import padded_fp8
from twolane.engine.kernels.rows.quantise import quantise_rows
from twolane.engine.model_files.fp8 import Fp8Rows, Matrix, Unscaled

FAST = True  # accumulate in the tensor cores, without float32 registers every 128 terms


def fp8_rows(x: Matrix, *, pdl: int) -> Fp8Rows:
    """x as it is, or rounded to FP8."""
    if isinstance(x, Fp8Rows):
        return x
    rows = padded_fp8(x, *x.shape)
    quantise_rows(x, out=rows, pdl=pdl)
    return rows


def fp8_product(x: Fp8Rows, weight: Fp8Rows, *, dtype: torch.dtype) -> torch.Tensor:
    """x `[n, in]` times `[out, in]` transposed: a new `[n, out]` of `dtype`."""
    if x.values.is_meta:
        note_call(fp8_product, x, weight, dtype=dtype)
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


def unscaled_product(
    x: Fp8Rows, weight: Fp8Rows, *, dtype: torch.dtype, one: torch.Tensor
) -> Unscaled:
    """The same, whose reader applies the scales: cuBLAS then takes a third less time for a few
    hundred rows. `one` [] float32 is 1, on the same device."""
    if x.values.is_meta:
        note_call(unscaled_product, x, weight, dtype=dtype, one=one)
        sums = x.values.new_empty(len(x), len(weight), dtype=dtype)
    elif x.values.device.type != "cuda":
        sums = torch.mm(x.values.float(), weight.values.float().t()).to(dtype)
    else:
        sums = torch._scaled_mm(
            x.values,
            weight.values.t(),
            scale_a=one,
            scale_b=one,
            out_dtype=dtype,
            use_fast_accum=FAST,
        )
    return Unscaled(sums, x.scales, weight.scales)
