"""Kernels that write or read FP8 rows, against float64, in the interpreter."""

import pytest

pytest.importorskip("triton")

import torch

from twolane.engine.kernels.rows.norm import reference_rms_norm, rms_norm
from twolane.engine.kernels.rows.quantise import quantise_rows
from twolane.engine.kernels.rows.silu import reference_silu_mul, silu_mul
from twolane.engine.model_files.fp8 import Fp8Rows


def poisoned(rows: int, width: int) -> Fp8Rows:
    out = Fp8Rows.empty(rows, width)
    out.values.fill_(torch.nan)
    out.scales.fill_(torch.nan)
    return out


def assert_rounded(got: Fp8Rows, expected: torch.Tensor) -> None:
    """Each row is `expected` to FP8's precision, under the scale of its largest."""
    assert got.scales.mul(448).double().allclose(expected.abs().amax(-1), rtol=1e-5)
    error = (got.dequantise().double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert error.max() < 0.04
    nearest = Fp8Rows.empty(*expected.shape)
    nearest.copy_(expected)
    assert (nearest.values.float() == got.values.float()).float().mean() > 0.99


@pytest.mark.parametrize("width", [64, 96, 3584])
@pytest.mark.parametrize("adds", [True, False])
def test_norm_to_fp8_matches_float64(width: int, adds: bool) -> None:
    x, weight = torch.randn(3, 2 * width)[:, :width] * 5, torch.randn(width)
    residual = torch.randn(3, width) if adds else None
    normed, total = reference_rms_norm(x, weight, 1e-5, residual)
    out = poisoned(3, width)
    rms_norm(x, weight, out=out, epsilon=1e-5, residual=residual)
    assert_rounded(out, normed)
    if residual is not None:
        assert torch.allclose(residual.double(), total, atol=1e-5)


def test_silu_to_fp8_matches_float64() -> None:
    gate_up = torch.randn(3, 2 * 1040) * torch.tensor([[0.01], [1.0], [4.0]])
    out = poisoned(3, 1040)
    silu_mul(gate_up, out=out)
    assert_rounded(out, reference_silu_mul(gate_up))


def test_rows_are_rounded_alone_and_zeros_stay_zero() -> None:
    x = torch.randn(4, 200)[:, :100] * torch.tensor([[1e-3], [1.0], [1e4], [0.0]])
    out = poisoned(4, 100)
    quantise_rows(x, out=out)
    assert_rounded(Fp8Rows(out.values[:3], out.scales[:3]), x[:3].double())
    assert out.dequantise()[3].abs().sum() == 0


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(broken: float) -> None:
    x = torch.randn(2, 32)
    x[1, 3] = broken
    out = poisoned(2, 32)
    quantise_rows(x, out=out)
    assert out.dequantise().isfinite().all(-1).tolist() == [True, False]
