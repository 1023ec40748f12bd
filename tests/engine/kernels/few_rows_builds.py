"""Launches of `few_rows_product` whose builds `builds.py` looks at, as Llama-3.1-8B makes them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from twolane.engine.kernels.products.few_rows import PartialSums, few_rows_product
from twolane.engine.kernels.products.few_rows_plan import config_for, pad_rows
from twolane.engine.kernels.products.unnormed import Residual, Unnormed
from twolane.engine.model_files.fp8 import Fp8Rows

ROWS = (8, 32, 64, 80, 96, 128, 144, 160, 192)
HIDDEN, QKV, UNITS, VOCABULARY = 4096, 6144, 14_336, 128_256
FEW = 128  # outputs of a launch: of a build, no more matters than the configuration for all of them


def streamed_launches() -> dict[str, Callable[[], object]]:
    """By name: those that add to the residual stream, those that norm what they read, and those of
    plain and of FP8 rows that do neither."""
    made: dict[str, Callable[[], object]] = {}
    for n in ROWS:
        made |= {
            f"streamed out {n}": partial(_plain, n, HIDDEN),
            f"streamed head {n}": partial(_plain, n, VOCABULARY),
            f"streamed gated {n}": partial(_plain, n, UNITS, gated=True),
            f"streamed adding {n}": partial(_adding, n, HIDDEN),
            f"streamed adding down {n}": partial(_adding, n, UNITS),
            f"streamed norming {n}": partial(_norming, n, QKV),
            f"streamed gated norming {n}": partial(_norming, n, UNITS, gated=True),
        }
    made |= {f"streamed fp8 {n}": partial(_fp8, n, 2 * UNITS) for n in (8, 80, 128, 192)}
    gated = {n: partial(_fp8, n, UNITS, gated=True) for n in (8, 96, 128, 160, 192)}
    return made | {f"streamed gated fp8 {n}": launch for n, launch in gated.items()}


def _plain(n: int, outer: int, *, gated: bool = False) -> None:
    _launch(_zeros(n, HIDDEN), _zeros(FEW * (1 + gated), HIDDEN), outer, gated=gated)


def _fp8(n: int, outer: int, *, gated: bool = False) -> None:
    weight = Fp8Rows.empty(FEW * (1 + gated), HIDDEN)
    _launch(Fp8Rows.empty(n, HIDDEN), weight, outer, gated=gated)


def _adding(n: int, inner: int) -> None:
    to = Residual(_zeros(n, FEW), _zeros(FEW), 1e-5)
    _launch(_zeros(n, inner), _zeros(FEW, inner), HIDDEN, residual=to)


def _norming(n: int, outer: int, *, gated: bool = False) -> None:
    """Of rows whose squares two tiles have left."""
    sums = PartialSums("cpu")
    squares = sums.squares[: 2 * pad_rows(n)].view(2, -1)
    x = Unnormed(values=_zeros(n, HIDDEN), squares=squares, epsilon=1e-5)
    _launch(x, _zeros(FEW * (1 + gated), HIDDEN), outer, gated=gated, sums=sums)


def _launch(
    x: torch.Tensor | Fp8Rows | Unnormed,
    weight: torch.Tensor | Fp8Rows,
    outer: int,
    *,
    gated: bool = False,
    residual: Residual | None = None,
    sums: PartialSums | None = None,
) -> None:
    """With the configuration for `outer` outputs, by two programs."""
    n, inner = x.shape
    itemsize = x.values.itemsize if isinstance(x, Fp8Rows) else 2
    config = config_for(n, outer, inner, gated=gated, itemsize=itemsize)
    few_rows_product(
        x, weight, out=_zeros(n, FEW), sums=sums or PartialSums("cpu"), gated=gated,
        residual=residual, config=replace(config, programs=2), pdl=True,
    )  # fmt: skip


def _zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.bfloat16)
