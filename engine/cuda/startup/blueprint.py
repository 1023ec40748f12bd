"""The description of an engine on a GPU, before any of it is in memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from twolane.engine.config import GPU_PAGE_TOKENS, EngineConfig
from twolane.engine.cpu.model import matrices
from twolane.engine.cpu.pool import PoolShape
from twolane.engine.cuda.all_reduce import AllReduce
from twolane.engine.cuda.model import CudaModel
from twolane.engine.cuda.plans import DecodePlans
from twolane.engine.cuda.products import Products
from twolane.engine.cuda.tuning import Tuning
from twolane.engine.kernels.pages.kv_view import KVView
from twolane.engine.model_files.architecture import Architecture
from twolane.engine.model_files.fp8 import FP8
from twolane.engine.model_files.shard import Shard
from twolane.engine.model_files.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """One rank's part of an engine: enough to build its model around given weights and a given
    pool, in memory or on `meta`."""

    config: EngineConfig
    arch: Architecture  # the whole model's
    shard: Shard
    fp8: bool  # whether the layers' matrices are FP8
    tuning: Tuning

    @property
    def local(self) -> Architecture:
        """The architecture of this rank's part."""
        return self.shard.local(self.arch)

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.config.dtype)
        return found

    @property
    def kv_dtype(self) -> torch.dtype:
        return FP8 if self.config.kv_dtype == "fp8" else self.dtype

    @property
    def context(self) -> int:
        """How many positions a row may have."""
        return self.config.context_for(self.arch.max_position)

    @property
    def page_tokens(self) -> int:
        return self.config.page_tokens or GPU_PAGE_TOKENS

    @property
    def table_pages(self) -> int:
        """Pages per row of a page table: a multiple of 16 bytes, so that one kernel serves all
        rows."""
        return -(-self.context // (4 * self.page_tokens)) * 4

    @property
    def pool(self) -> PoolShape:
        return PoolShape(
            layers=self.arch.layers,
            kv_heads=self.local.kv_heads,
            head_dim=self.arch.head_dim,
            page_tokens=self.page_tokens,
            dtype=self.kv_dtype,
            ranks=self.shard.ranks,
            whole_kv_heads=self.arch.kv_heads,
        )

    def products(self, weights: Weights) -> Products:
        """Products for these weights, which exact mode probes."""
        products = Products(exact=self.config.exact, dtype=self.dtype, tuning=self.tuning)
        if self.config.exact:
            for weight in matrices(weights):
                products.probe(weight)
        return products

    def model(
        self,
        weights: Weights,
        pool: torch.Tensor,
        *,
        products: Products,
        latest: torch.Tensor,
        all_reduce: AllReduce | None,
    ) -> CudaModel:
        """A model around `pool`, the bytes of whole pages; all tensors are on its device."""
        view = KVView(
            values=pool.view(self.kv_dtype),
            layers=self.arch.layers,
            kv_heads=self.local.kv_heads,
            head_dim=self.arch.head_dim,
            page_tokens=self.page_tokens,
        )
        return CudaModel(
            self.local,
            weights,
            view,
            products=products,
            plans=DecodePlans(
                self.local,
                page_tokens=self.page_tokens,
                table_pages=self.table_pages,
                exact=self.config.exact,
                device=pool.device,
            ),
            latest=latest,
            max_context_tokens=self.context,
            exact=self.config.exact,
            overlap=self.tuning.overlap,
            all_reduce=all_reduce,
        )
