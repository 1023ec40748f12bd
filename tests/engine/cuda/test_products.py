"""Which kernel takes a product, on the CPU: a double of it in plain Triton, where it streams."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

import torch

from twolane.engine.cuda.products import Rows
from twolane.engine.kernels.products.unnormed import Residual, Unnormed
from twolane.engine.kernels.rows.norm import reference_rms_norm
from twolane.engine.kernels.rows.silu import reference_silu_mul
from twolane.engine.kernels.testing import relative_error
from twolane.engine.model_files.fp8 import Fp8Rows, Matrix


@pytest.fixture
def streaming(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Products of any dtype and device stream; the rows of each that did."""
    import twolane.engine.cuda.products as products
    from tests.engine.kernels.general_few_rows import general_few_rows_product

    rows: list[int] = []

    def noting(x: Rows, *args: Any, **options: Any) -> Unnormed | None:
        rows.append(len(x))
        return general_few_rows_product(x, *args, **options)

    monkeypatch.setattr(products, "can_stream", lambda x: True)
    monkeypatch.setattr(products, "few_rows_product", noting)
    return rows


@pytest.mark.parametrize("biased", [False, True])
def test_products_of_few_rows_stream_and_of_many_do_not(biased: bool, streaming: list[int]) -> None:
    from twolane.engine.cuda.products import STREAMED_ROWS, Products

    products = Products(exact=False)
    weight = torch.randn(2 * 72, 40)
    bias = torch.randn(2 * 72) if biased else None
    for n in (3, 17, STREAMED_ROWS + 1):
        x = torch.randn(n, 40)
        expected = x.double() @ weight.double().T + (bias.double() if bias is not None else 0)
        got = products(x, weight, bias, pdl=0)
        assert torch.allclose(got.double(), expected, atol=1e-4), n
        gated = products.gated(x, weight, bias, pdl=0)
        assert isinstance(gated, torch.Tensor)
        assert torch.allclose(gated.double(), reference_silu_mul(expected), atol=1e-4), n
    assert streaming == [3, 3, 17, 17]


def test_few_rows_of_fp8_stream_and_are_as_the_librarys(streaming: list[int]) -> None:
    """The double streams float32 in place of FP8: a plain row is rounded to what FP8 holds."""
    from twolane.engine.cuda.products import STREAMED_ROWS, Products

    products = Products(exact=False, dtype=torch.float32)
    weight = wide_fp8(2 * 72, 48)
    for n in (1, 17, STREAMED_ROWS + 1):
        x = wide_fp8(n, 48)
        expected = x.dequantise().double() @ weight.dequantise().double().T
        got = products(x, weight, None, pdl=0)
        assert torch.allclose(got.double(), expected, atol=1e-3), n
        if n <= STREAMED_ROWS:
            gated = products.gated(x, weight, None, pdl=0)
            assert isinstance(gated, torch.Tensor), "rounded by the next product"
            assert torch.allclose(gated.double(), reference_silu_mul(expected), atol=1e-3), n
    assert streaming == [1, 1, 17, 17]


def wide_fp8(rows: int, width: int) -> Fp8Rows:
    """FP8 rows whose values are held as float32, which the double can load."""
    return Fp8Rows(torch.randn(rows, width) / 3, torch.rand(rows) + 0.5)


def test_measured_choices_come_before_guesses(
    streaming: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    import twolane.engine.cuda.products as module

    monkeypatch.setitem(module.MEASURED, (8, 64, 40, False, 4), None)
    products = module.Products(exact=False)
    x, weight = torch.randn(5, 40), torch.randn(64, 40)
    products(x, weight, None, pdl=0)
    assert streaming == []
    products(torch.randn(9, 40), weight, None, pdl=0)
    assert streaming == [9]


@pytest.mark.parametrize("exact", [False, True])
def test_library_products_do_not_stream(exact: bool, streaming: list[int]) -> None:
    from twolane.engine.cuda.products import Products
    from twolane.engine.cuda.tuning import Tuning

    weight = torch.randn(64, 40)
    products = Products(exact=exact, tuning=Tuning(library_products=True))
    products.probe(weight)
    products(torch.randn(5, 40), weight, None, pdl=0)
    products.gated(torch.randn(5, 40), weight, None, pdl=0)
    assert streaming == []


@pytest.mark.parametrize("other_bits", [0, 8, 160])
def test_exact_products_stream_if_that_gives_the_bits_of_tiles_for_each_number_of_rows(
    other_bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The double sums as the tiles do, but for slices of `other_bits` rows."""
    import twolane.engine.cuda.products as module
    from twolane.engine.kernels.products.few_rows_plan import FewRowsConfig

    rows: list[int] = []

    def double(
        x: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor, config: FewRowsConfig,
        bias: torch.Tensor | None, gated: bool, **options: object,
    ) -> None:  # fmt: skip
        assert not config.split, "sums of a shared tile have an order of their own"
        assert (bias, gated) == (None, False), "rounded before the bias and before silu, as tiles"
        rows.append(len(x))
        padded = torch.cat([x, x.new_zeros(module.EXACT_ONE_TILE - len(x), x.shape[1])])
        out.copy_(torch.mm(padded, weight.t())[: len(x)])
        if len(x) == other_bits:
            out[-1, -1] += 1e-3

    monkeypatch.setattr(module, "can_stream", lambda x: True)
    monkeypatch.setattr(module, "few_rows_product", double)
    products = module.Products(exact=True)
    weight, bias = torch.randn(64, 40), torch.randn(64)
    products.probe(weight)
    assert set(rows) == {8, 16, 32, 64, 80, 96, 128, 144, 160}
    rows.clear()
    x = torch.randn(300, 40)
    whole = products(x, weight, bias, pdl=0)
    gated = products.gated(x, weight, bias, pdl=0)
    assert isinstance(gated, torch.Tensor)
    assert rows == []
    for n in (1, 5, 97, 160, 161, 250):
        assert torch.equal(products(x[:n], weight, bias, pdl=0), whole[:n])
        few = products.gated(x[:n], weight, bias, pdl=0)
        assert isinstance(few, torch.Tensor)
        assert torch.equal(few, gated[:n])
    assert rows == ([] if other_bits else [1, 1, 5, 5, 97, 97, 160, 160])


def test_products_for_a_norm_are_scaled_there_where_that_is_faster(streaming: list[int]) -> None:
    from twolane.engine.cuda.products import STREAMED_ROWS, UNSCALED_ROWS, Products
    from twolane.engine.kernels.rows.norm import reference_rms_norm, rms_norm
    from twolane.engine.model_files.fp8 import Unscaled

    products, norm = Products(exact=False, dtype=torch.float32), torch.rand(32) + 0.5
    weight, bias = wide_fp8(32, 48), torch.randn(32)
    for n in (STREAMED_ROWS, STREAMED_ROWS + 1, UNSCALED_ROWS, UNSCALED_ROWS + 1):
        x, some = wide_fp8(n, 48), torch.tensor([n - 1, 0, 7])
        sums = x.dequantise().double() @ weight.dequantise().double().T
        got = products.for_norm(x, weight, None, pdl=0)
        assert isinstance(got, Unscaled) == (STREAMED_ROWS < n <= UNSCALED_ROWS)
        assert isinstance(products.for_norm(x, weight, bias, pdl=0), torch.Tensor)
        residual = torch.randn(3, 32)
        out = torch.full_like(residual, torch.nan)
        expected, total = reference_rms_norm(sums[some], norm, 1e-5, residual)
        rms_norm(got.index_select(0, some), norm, out=out, epsilon=1e-5, residual=residual)
        assert torch.allclose(out.double(), expected, atol=1e-4), n
        assert torch.allclose(residual.double(), total, atol=1e-4), n


def test_products_of_few_rows_add_to_the_residual_where_no_norm_needs_a_launch_of_its_own(
    streaming: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter cuts off what does not fit in bfloat16, which is twice a card's error."""
    import twolane.engine.cuda.products as module
    from twolane.engine.cuda.products import Products
    from twolane.engine.cuda.tuning import Tuning

    added_rows = 20  # of more than one tile
    monkeypatch.setattr(module, "ADDED_ROWS", added_rows)
    monkeypatch.setattr(module, "EXACT_STREAMED_ROWS", 8)  # probing more takes seconds
    half, epsilon = torch.bfloat16, 1e-5
    weight, reader = torch.randn(72, 40).to(half) / 6, torch.randn(2 * 24, 72).to(half) / 8
    norm, bias = (torch.randn(72) + 1).to(half), torch.randn(72).to(half)
    products, x = Products(exact=False), torch.randn(added_rows + 1, 40).to(half)
    for n in (3, added_rows):
        residual = torch.randn(n, 72).to(half) * 1e4
        unnormed = products.add(x[:n], weight, bias, Residual(residual, norm, epsilon), pdl=0)
        assert unnormed is not None
        expected, _ = reference_rms_norm(residual, norm, epsilon)
        expected = expected @ reader.double().T
        assert relative_error(products(unnormed, reader, None, pdl=0), expected) < 1e-2
        gated = products.gated(unnormed, reader, None, pdl=0)
        assert isinstance(gated, torch.Tensor)
        assert relative_error(gated, reference_silu_mul(expected)) < 2e-2
    assert streaming == [3, 3, 3, *[added_rows] * 3]

    def leaves_the_norm(products: Products, x: torch.Tensor, weight: Matrix) -> bool:
        residual = torch.ones(len(x), 72, dtype=x.dtype)
        to = Residual(residual, norm.to(x.dtype), epsilon)
        return products.add(x, weight, None, to, pdl=0) is None and bool((residual == 1).all())

    assert leaves_the_norm(products, x, weight), "many rows"
    assert leaves_the_norm(products, x[:3].half(), weight.half()), "it might overflow"
    assert leaves_the_norm(products, x[:3], wide_fp8(72, 40)), "rows need a scale each"
    exact = Products(exact=True)
    exact.probe(weight)
    assert leaves_the_norm(exact, x[:3], weight)
    library = Tuning(library_products=True)
    assert leaves_the_norm(Products(exact=False, tuning=library), x[:3], weight)


def test_gated_products_of_many_rows_are_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    import twolane.engine.cuda.products as module
    from twolane.engine.cuda.tuning import Tuning

    rows: list[int] = []

    def noting(x: torch.Tensor, weight: torch.Tensor, plan: object) -> torch.Tensor:
        rows.append(len(x))
        return x.new_empty(len(x), len(weight) // 2)

    monkeypatch.setattr(module, "can_stream", lambda x: len(x) > module.STREAMED_ROWS)
    monkeypatch.setattr(module, "_gated_many_rows", noting)
    monkeypatch.setattr(module, "silu_mul", lambda wide, *, out, pdl: None)  # not what is looked at
    products = module.Products(exact=False)

    def taken(
        n: int, units: int = 8, inner: int = 72, *, dtype: torch.dtype = torch.bfloat16,
        products: module.Products = products, biased: bool = False,
    ) -> bool:  # fmt: skip
        weight = torch.zeros(2 * units, inner, dtype=dtype)
        bias = torch.zeros(2 * units, dtype=dtype) if biased else None
        before = len(rows)
        out = products.gated(torch.zeros(n, inner, dtype=dtype), weight, bias, pdl=0)
        assert out.shape == (n, units)
        return len(rows) > before

    assert taken(module.MANY_ROWS)
    assert not taken(module.MANY_ROWS - 1)
    assert not taken(600, biased=True)
    assert not taken(600, dtype=torch.float32)
    assert not taken(600, inner=64), "one chunk"
    assert not taken(600, inner=76), "rows do not begin at multiples of 16 bytes"
    assert not taken(600, units=12), "nor do those of the answer"
    library = Tuning(library_products=True)
    assert not taken(600, products=module.Products(exact=False, tuning=library))
    exact = module.Products(exact=True)
    exact.probe(torch.zeros(16, 72, dtype=torch.bfloat16))
    assert not taken(600, products=exact)
    monkeypatch.setattr(module, "_cores", lambda device: 132)
    assert not taken(600), "most of the card would be idle"
