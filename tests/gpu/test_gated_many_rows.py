"""Gated products of many rows on a card, against float64: whole and cut tiles, chunks and bands."""

import pytest

pytest.importorskip("triton")

import torch

from twolane.engine.cuda.products import Products
from twolane.engine.cuda.tuning import Tuning
from twolane.engine.kernels.pdl import APART, OVERLAP
from twolane.engine.kernels.products.gated_many_rows import gated_many_rows
from twolane.engine.kernels.products.gated_many_rows_plan import (
    GatedManyRowsPlan,
    plan_gated_many_rows,
)
from twolane.engine.kernels.rows.norm import rms_norm
from twolane.engine.kernels.rows.silu import reference_silu_mul
from twolane.engine.kernels.testing import relative_error

pytestmark = pytest.mark.gpu

BF16 = torch.bfloat16
BOUND = 4.5e-3  # one rounding to bf16, of few answers


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(BF16)


def expected(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """In float64, but for gates and ups, which count as rounded."""
    return reference_silu_mul((x.double() @ weight.double().T).to(BF16))


def check(rows: int, units: int, inner: int, plan: GatedManyRowsPlan | None = None) -> None:
    """Of rows that lie apart, as those of a wider matrix do."""
    x, weight = random(rows, inner + 8)[:, :inner], random(2 * units, inner) / inner**0.5
    whole = torch.full((rows + 200, units + 8), torch.nan, device="cuda", dtype=BF16)
    out = whole[:rows, :units]
    gated_many_rows(x, weight, out=out, plan=plan)
    assert out.isfinite().all()
    assert whole[rows:].isnan().all(), "rows past the end were written"
    assert whole[:, units:].isnan().all(), "columns past the end were written"
    some = torch.randperm(rows, device="cuda")[:512]
    assert relative_error(out[some], expected(x[some], weight)) < BOUND


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
    check(
        600, 1336, 520, GatedManyRowsPlan(5, 11, band, programs)
    )  # 9 chunks: a ring is never in step


def test_a_tile_of_two_chunks_is_over_before_the_next_begins() -> None:
    check(600, 1336, 72, GatedManyRowsPlan(5, 11, 4, 7))


def test_products_of_many_rows_take_their_place_amid_launches_that_overlap() -> None:
    """Norm, gated product, product, norm: by hand and as a graph, against the library's products.

    A bucket of 512 decode rows is such a chain.
    """
    rows, hidden, units = 512, 1024, 14336
    gates, down, scale = random(2 * units, hidden) / 32, random(hidden, units) / 120, random(hidden)
    start = random(rows, hidden)

    def chain(products: Products, pdl: int) -> torch.Tensor:
        x, out = torch.empty_like(start), torch.empty_like(start)
        rms_norm(start, scale, out=x, epsilon=1e-6, pdl=APART)
        for _ in range(3):
            thin = products.gated(x, gates, None, pdl=pdl)
            assert isinstance(thin, torch.Tensor)
            rms_norm(products(thin, down, None, pdl=pdl), scale, out=x, epsilon=1e-6, pdl=pdl)
        return out.copy_(x)

    library = chain(Products(exact=False, tuning=Tuning(library_products=True)), APART)
    ours = Products(exact=False)
    eager = chain(ours, OVERLAP)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chain(ours, OVERLAP)
    captured.fill_(torch.nan)
    graph.replay()
    assert torch.equal(captured, eager)
    assert relative_error(eager, library) < 3e-2


def test_the_ends_of_silu_are_finite() -> None:
    """Gates of -1e4 to 1e4, whose exponentials are 0 and infinite."""
    x = torch.zeros(128, 128, device="cuda", dtype=BF16)
    x[:, 0] = torch.linspace(-1e4, 1e4, 128)
    weight = torch.zeros(2 * 128, 128, device="cuda", dtype=BF16)
    weight[:, 0] = 1
    out = torch.full((128, 128), torch.nan, device="cuda", dtype=BF16)
    gated_many_rows(x, weight, out=out)
    value = x[:, :1].double()
    assert torch.allclose(
        out.double(), (value * value.sigmoid() * value).expand(-1, 128), rtol=1e-2
    )


def test_the_same_call_gives_the_same_bits() -> None:
    x, weight = random(1024, 4096), random(2 * 3584, 4096) / 64
    outs = []
    for _ in range(20):
        out = torch.full((1024, 3584), torch.nan, device="cuda", dtype=BF16)
        gated_many_rows(x, weight, out=out, plan=plan_gated_many_rows(1024, 3584, cores=132))
        outs.append(out)
    assert all(torch.equal(out, outs[0]) for out in outs)
