"""Products with weights: by our own kernels for few rows, by the library, or in exact tiles."""

from __future__ import annotations

import torch

from twolane.engine.cpu.exact_products import TiledProduct
from twolane.engine.cuda.fp8_products import fp8_product, fp8_rows, unscaled_product
from twolane.engine.cuda.tuning import DEFAULT_TUNING, Tuning
from twolane.engine.kernels.launch import card_of, note_call
from twolane.engine.kernels.pdl import APART
from twolane.engine.kernels.products.few_rows import PartialSums, can_stream, few_rows_product
from twolane.engine.kernels.products.few_rows_plan import (
    MAX_ROWS,
    PADDED_ROWS,
    FewRowsConfig,
    config_for,
    pad_rows,
)
from twolane.engine.kernels.products.gated_many_rows_plan import (
    CHUNK,
    GatedManyRowsPlan,
    plan_gated_many_rows,
)
from twolane.engine.kernels.products.row_padding import padded_empty, padded_fp8
from twolane.engine.kernels.products.unnormed import Residual, Unnormed
from twolane.engine.kernels.rows.silu import silu_mul
from twolane.engine.model_files.fp8 import Fp8Rows, Matrix, Unscaled

STREAMED_ROWS = MAX_ROWS  # up to here our own kernel is faster than cuBLAS
ADDED_ROWS = 96  # up to here products that add to the residual are faster than a norm's launch
UNSCALED_ROWS = 384  # up to here, and beyond STREAMED_ROWS, cuBLAS is faster without scales
MANY_ROWS = 512  # from here our own gated kernel is as fast, if it fills the card
# Measured on an H200 where `config_for` is off by more than 3 %. Key: padded rows, outputs (units,
# if gated), inputs, gated, bytes of a value. None: cuBLAS is faster.
MEASURED: dict[tuple[int, int, int, bool, int], FewRowsConfig | None] = {
    (128, 6144, 4096, False, 2): None,
    (128, 128_256, 4096, False, 2): None,
    (144, 128_256, 4096, False, 2): None,
    (160, 128_256, 4096, False, 2): None,
    (192, 128_256, 4096, False, 2): None,
    (64, 4608, 3584, False, 2): None,
    (80, 4608, 3584, False, 2): None,
    (128, 4608, 3584, False, 2): None,
    (160, 8192, 7168, False, 2): None,
    (192, 2560, 8192, False, 2): None,
    (192, 18_944, 3584, True, 2): FewRowsConfig(
        half=64, pair=True, block_in=64, stages=5, split=False, programs=99
    ),
    (128, 3584, 18_944, False, 2): FewRowsConfig(
        half=64, pair=False, block_in=128, stages=4, split=True, programs=112
    ),
}
# Rows per tile in exact mode, those of most buckets of decode rows among them. 128 is the reference
# where our own kernel cannot be: cuBLAS seldom splits K there.
EXACT_HEIGHTS = (16, 32, 64, 128, 160, 192, 256, 320, 384, 512, 1024, 2048)
EXACT_REFERENCE = 128
EXACT_ONE_TILE = 384
EXACT_STREAMED_ROWS = 160  # up to here our own kernel is faster than tiles, even unsplit
Rows = Matrix | Unnormed  # what products read


class Products:
    """x `[n, in]` times a weight `[out, in]` transposed, plus a bias: a new `[n, out]`.

    x may be `Unnormed`, as `add` leaves it: the product is then that of its norm.

    With `exact`, a row's bits do not depend on n; weights must then be unquantised and probed
    first. FP8 weights also take FP8 rows; their results have `dtype`. All calls must be on one
    stream.

        rows      1 to 192                        beyond
        plain     streamed (`few_rows_product`)   cuBLAS
        gated     streamed, with silu             cuBLAS; silu (*)
        FP8       streamed, FP8 rows              torch's scaled product
        exact     streamed (**); silu, if gated   tiles of the library's product

    (*) From 512 rows of bfloat16 without a bias: `gated_many_rows`.
    (**) Up to 160 rows, in the order of the inputs, if the library's tall tiles give the same bits;
    else tiles.
    """

    def __init__(
        self, *, exact: bool, dtype: torch.dtype = torch.bfloat16, tuning: Tuning = DEFAULT_TUNING
    ) -> None:
        self._dtype = dtype
        self._tiled = None
        if exact:
            self._tiled = TiledProduct(EXACT_HEIGHTS, EXACT_REFERENCE, one_tile_rows=EXACT_ONE_TILE)
        self._tuning = tuning
        self._sums: PartialSums | None = None
        self._one: torch.Tensor | None = None  # a scale of FP8 products
        self._configs: dict[tuple[int, int, int, bool, int], FewRowsConfig] = {}

    def probe(self, weight: torch.Tensor) -> None:
        """Exact mode: find the tiles, and whether to stream few rows, that treat all rows alike."""
        if self._tiled is not None:
            streams = self._config(weight[:1], len(weight), gated=False) is not None
            heights = tuple(n for n in PADDED_ROWS if n <= EXACT_STREAMED_ROWS)
            self._tiled.probe(weight, self._stream_apart if streams else None, heights)

    def __call__(
        self, x: Rows, weight: Matrix, bias: torch.Tensor | None, *, pdl: int
    ) -> torch.Tensor:
        """`pdl`: the launch may overlap the end of the previous one, if the kernel is ours."""
        if isinstance(x, Unnormed):
            streamed = self._streamed_config(x.values, len(weight), gated=False)
            return self._stream(x, weight, bias, streamed, gated=False, pdl=pdl)
        if isinstance(weight, Fp8Rows):
            rounded = fp8_rows(x, pdl=pdl)
            config = self._config(rounded.values, len(weight), gated=False)
            if config is not None:
                return self._stream(rounded, weight, bias, config, gated=False, pdl=pdl)
            out = fp8_product(rounded, weight, dtype=self._dtype)
            return out if bias is None else out.add_(bias)
        assert isinstance(x, torch.Tensor), "FP8 rows need FP8 weights"
        config = self._config(x, len(weight), gated=False)
        if self._tiled is not None:
            if config is not None and self._tiled.takes_few(weight):
                out = self._stream(x, weight, None, config, gated=False, pdl=pdl)
            else:
                out = self._tiled(x, weight)
            return out if bias is None else out.add_(bias)
        if config is not None:
            return self._stream(x, weight, bias, config, gated=False, pdl=pdl)
        if x.is_meta:
            note_call(_library_product, x, weight, bias)
            return x.new_empty(len(x), len(weight))  # torch's own meta product would import sympy
        return _library_product(x, weight, bias)

    def add(
        self,
        x: Matrix,
        weight: Matrix,
        bias: torch.Tensor | None,
        residual: Residual,
        *,
        pdl: int,
    ) -> Unnormed | None:
        """residual += the product, in the same launch. None, and nothing is done, where the norm
        after it needs a launch of its own: of many rows, with FP8 weights, in exact mode."""
        if not isinstance(x, torch.Tensor) or not isinstance(weight, torch.Tensor):
            return None
        if x.dtype != torch.bfloat16:
            return None  # of float16, a residual times its weight may be infinite
        if self._tiled is not None or len(x) > ADDED_ROWS or not self._streams(x):
            return None
        config = self._streamed_config(x, len(weight), gated=False)
        out = padded_empty(x, len(x), len(weight))
        return few_rows_product(
            x, weight, out=out, sums=self._partial_sums(x.device), bias=bias, residual=residual,
            config=config, pdl=pdl,
        )  # fmt: skip

    def for_norm(
        self, x: Matrix, weight: Matrix, bias: torch.Tensor | None, *, pdl: int
    ) -> torch.Tensor | Unscaled:
        """The same product for `rms_norm`, which may have to scale it."""
        scales_late = STREAMED_ROWS < len(x) <= UNSCALED_ROWS and bias is None
        if not isinstance(weight, Fp8Rows) or not scales_late:
            return self(x, weight, bias, pdl=pdl)
        if self._one is None:
            self._one = torch.ones((), dtype=torch.float32, device=weight.values.device)
        rounded = fp8_rows(x, pdl=pdl)
        return unscaled_product(rounded, weight, dtype=self._dtype, one=self._one)

    def gated(self, x: Rows, weight: Matrix, bias: torch.Tensor | None, *, pdl: int) -> Matrix:
        """silu(gate) * up of weight `[2 * units, in]` (gates, ups): new rows `[n, units]`, perhaps
        already in FP8 if the weight is."""
        units = len(weight) // 2
        if isinstance(x, Unnormed):
            streamed = self._streamed_config(x.values, units, gated=True)
            return self._stream(x, weight, bias, streamed, gated=True, pdl=pdl)
        if isinstance(x, Fp8Rows):
            config = self._config(x.values, units, gated=True)
            if config is not None:
                return self._stream(x, weight, bias, config, gated=True, pdl=pdl)
        if isinstance(x, torch.Tensor) and isinstance(weight, torch.Tensor):
            config = self._config(x, units, gated=True)
            if config is not None:
                return self._stream(x, weight, bias, config, gated=True, pdl=pdl)
            plan = self._many_rows_plan(x, units) if bias is None else None
            if plan is not None:
                return _gated_many_rows(x, weight, plan)
        wide = self(x, weight, bias, pdl=pdl)
        thin = self.rows_like(wide, units, fp8=isinstance(weight, Fp8Rows))
        silu_mul(wide, out=thin, pdl=pdl)
        return thin

    def rows_like(self, x: torch.Tensor, width: int, *, fp8: bool) -> Matrix:
        """As many rows as x, uninitialised, in the form (FP8 or not) that products take best: the
        kernel that fills them can round on the way."""
        if fp8:
            return padded_fp8(x, len(x), width)
        return self.plain_rows_like(x, width)

    def plain_rows_like(self, x: torch.Tensor, width: int) -> torch.Tensor:
        """The same, not in FP8."""
        return padded_empty(x, len(x), width)

    def _many_rows_plan(self, x: torch.Tensor, units: int) -> GatedManyRowsPlan | None:
        """The plan of our own gated kernel for many rows; None if it does not apply."""
        rows, inner = x.shape
        if self._tiled is not None or self._tuning.library_products or rows < MANY_ROWS:
            return None
        if inner % 8 or units % 8 or inner <= CHUNK:
            return None
        if x.dtype != torch.bfloat16 or not can_stream(x):
            return None
        plan = plan_gated_many_rows(rows, units, cores=_cores(x.device))
        return plan if plan.fills(_cores(x.device)) else None

    def _streams(self, x: torch.Tensor) -> bool:
        """Whether our own kernel of few rows applies to x."""
        rows, inner = x.shape
        most = STREAMED_ROWS if self._tiled is None else EXACT_STREAMED_ROWS
        if self._tuning.library_products or rows > most:
            return False
        return inner * x.itemsize % 16 == 0 and can_stream(x)

    def _config(self, x: torch.Tensor, n_out: int, *, gated: bool) -> FewRowsConfig | None:
        """The configuration of our own kernel; None if it does not apply, or is slower."""
        if gated and self._tiled is not None:
            return None  # tiles of the library's product are rounded before silu
        if not self._streams(x):
            return None
        key = (pad_rows(len(x)), n_out, x.shape[1], gated, x.itemsize)
        if self._tiled is None and MEASURED.get(key, self) is None:
            return None
        return self._streamed_config(x, n_out, gated=gated)

    def _streamed_config(self, x: torch.Tensor, n_out: int, *, gated: bool) -> FewRowsConfig:
        """The one to take where our own kernel is taken."""
        key = (pad_rows(len(x)), n_out, x.shape[1], gated, x.itemsize)
        if key not in self._configs:
            guess = config_for(
                *key[:3],
                gated=gated,
                cores=_cores(x.device),
                ring_bytes=self._tuning.ring_bytes,
                itemsize=x.itemsize,
                may_split=self._tiled is None,
            )
            measured = None if self._tiled is not None else MEASURED.get(key)
            self._configs[key] = measured or guess
        return self._configs[key]

    def _partial_sums(self, device: torch.device) -> PartialSums:
        if self._sums is None:
            self._sums = PartialSums(device)
        return self._sums

    def _stream(
        self,
        x: Rows,
        weight: Matrix,
        bias: torch.Tensor | None,
        config: FewRowsConfig,
        *,
        gated: bool,
        pdl: int,
    ) -> torch.Tensor:
        like = x if isinstance(x, torch.Tensor) else x.values
        dtype = self._dtype if isinstance(x, Fp8Rows) else like.dtype
        out = padded_empty(like, len(x), len(weight) // (2 if gated else 1), dtype)
        sums = self._partial_sums(like.device)
        few_rows_product(
            x, weight, out=out, sums=sums, bias=bias, gated=gated, config=config, pdl=pdl
        )
        return out

    def _stream_apart(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        config = self._config(x, len(weight), gated=False)
        assert config is not None
        return self._stream(x, weight, None, config, gated=False, pdl=APART)


def _library_product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    return torch.mm(x, weight.t()) if bias is None else torch.addmm(bias, x, weight.t())


def _gated_many_rows(
    x: torch.Tensor, weight: torch.Tensor, plan: GatedManyRowsPlan
) -> torch.Tensor:
    from twolane.engine.kernels.products.gated_many_rows import (
        gated_many_rows,  # in Gluon, which a card may do without
    )

    out = x.new_empty(len(x), len(weight) // 2)
    gated_many_rows(x, weight, out=out, plan=plan)
    return out


def _cores(device: torch.device) -> int:
    """SMs of the card; 1 without a card."""
    card = card_of(device)
    return 1 if card is None else card.cores
