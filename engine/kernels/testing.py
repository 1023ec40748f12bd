"""Rows over a pool of random pages, for tests of attention on any device."""

import torch

from twolane.engine.kernels.attention.decode_attention import decode_attention
from twolane.engine.kernels.attention.decode_config import DecodeAttentionConfig
from twolane.engine.kernels.attention.decode_plan import allocate_plan, plan_decode
from twolane.engine.kernels.attention.prefill_attention import (
    PrefillConfig,
    config_for,
    prefill_attention,
)
from twolane.engine.kernels.attention.prefill_plan import plan_prefill
from twolane.engine.kernels.pages.kv_view import KVView, allocate_view
from twolane.engine.kernels.reference import reference_attention

LAYER = 1
NO_PAGE = 10**6  # far outside of any pool used here: reading it would fault


class PagedRows:
    """Row i has `starts[i]` cached and `lengths[i]` new tokens, in scattered pages.

    Slots past a row's end hold NaN (in an FP8 pool their scales do, and the values are the
    largest); table entries past its pages hold NO_PAGE.
    """

    def __init__(
        self,
        starts: list[int],
        lengths: list[int],
        *,
        heads: int = 4,
        kv_heads: int = 2,
        head_dim: int = 16,
        dtype: torch.dtype = torch.float32,
        kv_dtype: torch.dtype | None = None,
        layers: int = 2,
        device: str = "cpu",
        seed: int = 0,
        value_scales: tuple[float, float] = (-1.0, 0.6),
    ) -> None:
        """`value_scales`: the range of an FP8 pool's scales, as powers of 2."""
        source = torch.Generator(device).manual_seed(seed)
        self.starts, self.lengths = starts, lengths
        counts = [-(-end // 64) for end in self.ends]
        order = torch.randperm(sum(counts), generator=source, device=device).tolist()
        self.pages = [[order.pop() for _ in range(n)] for n in counts]
        self.view: KVView = allocate_view(
            max(1, sum(counts)),
            layers=layers,
            kv_heads=kv_heads,
            head_dim=head_dim,
            dtype=kv_dtype or dtype,
            device=device,
        )
        for part in self.view.parts():
            for page in part:  # page by page: a GPU's pool may be larger than its free memory
                page.copy_(torch.randn(page.shape, generator=source, device=device))
        if self.view.has_scales:
            scales = self.view.plane_scales()
            drawn = torch.rand(scales.shape, generator=source, device=device)
            low, high = value_scales
            scales[:, :, 0] = drawn[:, :, 0] + 0.5
            scales[:, :, 1] = torch.exp2(low + (high - low) * drawn[:, :, 1])
        for own, end in zip(self.pages, self.ends, strict=True):
            if end % 64:
                self._poison(own[-1], end % 64)
        width = max(1, *counts)
        padded = [own + [NO_PAGE] * (width - len(own)) for own in self.pages]
        self.tables = torch.tensor(padded, dtype=torch.int32, device=device)
        shape = (sum(lengths), heads, head_dim)
        self.queries = torch.randn(shape, generator=source, device=device).to(dtype)
        self.scale = head_dim**-0.5
        self.device = device

    def _poison(self, page: int, used: int) -> None:
        for part in self.view.parts():
            part[page, :, :, used:] = 448.0 if self.view.has_scales else torch.nan
        if self.view.has_scales:
            self.view.plane_scales()[page, ..., used:] = torch.nan

    @property
    def ends(self) -> list[int]:
        return [s + n for s, n in zip(self.starts, self.lengths, strict=True)]

    def decode(
        self,
        *,
        window: int = 0,
        max_items: int = 8,
        fixed_pages: int = 0,
        programs: int = 0,
        config: DecodeAttentionConfig | None = None,
    ) -> torch.Tensor:
        """Decode attention of rows with one new token each, into poisoned memory."""
        heads, head_dim = self.queries.shape[1:]
        out = torch.full_like(self.queries, torch.nan)
        plan = allocate_plan(
            len(self.ends),
            max_items=max_items,
            kv_heads=self.view.kv_heads,
            group=heads // self.view.kv_heads,
            head_dim=head_dim,
            device=self.device,
            fixed_pages=fixed_pages,
        )
        plan.partial_out.fill_(torch.nan)
        plan.partial_lse.fill_(torch.nan)
        ends = torch.tensor(self.ends, dtype=torch.int32, device=self.device)
        plan_decode(plan, ends, self.tables, page_tokens=64, window=window)
        decode_attention(
            self.queries,
            self.view,
            LAYER,
            self.tables,
            plan,
            out=out,
            scale=self.scale,
            window=window,
            programs=programs,
            config=config,
        )
        assert not plan.counters.any(), "a merge did not reset its counter"
        return out

    def prefill(
        self, *, window: int = 0, config: PrefillConfig | None = None, layer: int = LAYER
    ) -> torch.Tensor:
        """Prefill attention of all new tokens, into poisoned memory."""
        config = config or config_for(self.view)
        tiles = plan_prefill(
            self.starts, self.lengths, block_tokens=config.block_tokens, window=window
        )
        out = torch.full_like(self.queries, torch.nan)
        prefill_attention(
            self.queries,
            self.view,
            layer,
            self.tables,
            torch.from_numpy(tiles).to(self.device),
            out=out,
            scale=self.scale,
            window=window,
            config=config,
        )
        return out

    def expected(self, *, window: int = 0) -> torch.Tensor:
        """The reference in float64, row by row."""
        parts = [
            reference_attention(
                queries, self.view, LAYER, pages, start=start, scale=self.scale, window=window
            )
            for queries, pages, start in zip(
                torch.split(self.queries, self.lengths), self.pages, self.starts, strict=True
            )
        ]
        return torch.cat(parts)


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """|got - expected| / |expected| over all elements; NaN if any element is."""
    return float((got.double() - expected.double()).norm() / expected.double().norm())


def worst_row_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The relative error of the worst token: the error over all elements hides tokens with small
    answers, such as means of many values."""
    apart = (got.double() - expected.double()).flatten(1).norm(dim=1)
    worst = (apart / expected.double().flatten(1).norm(dim=1)).max()
    return float(worst) if not apart.isnan().any() else float("nan")
