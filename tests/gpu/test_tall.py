"""Gated products of many rows on a card, against float64: whole and cut tiles, chunks and bands."""

import pytest

pytest.importorskip("triton")

import torch

from engine.kernels.silu import reference_silu_mul
from engine.kernels.tall import gated_tall
from engine.kernels.tall_plan import TallPlan, plan_tall
from engine.kernels.testing import relative_error

pytestmark = pytest.mark.gpu

BF16 = torch.bfloat16
BOUND = 5e-3  # gates, ups and answers are rounded to bf16


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(BF16)


def check(rows: int, units: int, inner: int, plan: TallPlan | None = None) -> None:
    x, weight = random(rows, inner), random(2 * units, inner) / inner**0.5
    whole = torch.full((rows + 200, units), torch.nan, device="cuda", dtype=BF16)
    out = whole[:rows]
    gated_tall(x, weight, out=out, plan=plan)
    assert out.isfinite().all()
    assert whole[rows:].isnan().all(), "rows past the end were written"
    some = torch.randperm(rows, device="cuda")[:512]
    expected = reference_silu_mul(x[some].double() @ weight.double().T)
    assert relative_error(out[some], expected) < BOUND


@pytest.mark.parametrize(
    ("rows", "units", "inner"),
    [(1, 8, 72), (64, 128, 128), (65, 136, 904), (300, 1000, 904), (1300, 4864, 896),
     (2048, 14336, 4096), (8191, 14336, 4096)],
)  # fmt: skip
def test_gated_products_match_float64(rows: int, units: int, inner: int) -> None:
    check(rows, units, inner)


@pytest.mark.parametrize("band", [1, 3, 4, 5, 16])
@pytest.mark.parametrize("programs", [1, 7, 132])
def test_every_way_of_dealing_tiles_gives_the_same(band: int, programs: int) -> None:
    check(600, 1336, 456, TallPlan(5, 11, band, programs))


def test_the_ends_of_silu_are_finite() -> None:
    """Gates of -1e4 to 1e4, whose exponentials are 0 and infinite."""
    x = torch.zeros(128, 128, device="cuda", dtype=BF16)
    x[:, 0] = torch.linspace(-1e4, 1e4, 128)
    weight = torch.zeros(2 * 128, 128, device="cuda", dtype=BF16)
    weight[:, 0] = 1
    out = torch.full((128, 128), torch.nan, device="cuda", dtype=BF16)
    gated_tall(x, weight, out=out)
    value = x[:, :1].double()
    assert torch.allclose(
        out.double(), (value * value.sigmoid() * value).expand(-1, 128), rtol=1e-2
    )


def test_the_same_call_gives_the_same_bits() -> None:
    x, weight = random(1024, 4096), random(2 * 3584, 4096) / 64
    outs = []
    for _ in range(20):
        out = torch.full((1024, 3584), torch.nan, device="cuda", dtype=BF16)
        gated_tall(x, weight, out=out, plan=plan_tall(1024, 3584, cores=132))
        outs.append(out)
    assert all(torch.equal(out, outs[0]) for out in outs)
