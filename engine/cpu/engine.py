"""The engine on a CPU: loads a model directory, and computes steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from twolane.engine.config import CPU_PAGE_TOKENS, EngineConfig
from twolane.engine.cpu.attention import Attention
from twolane.engine.cpu.batch import pack
from twolane.engine.cpu.exact_products import Product, TiledProduct, plain_product
from twolane.engine.cpu.model import Model, matrices
from twolane.engine.cpu.pool import KVPool, PoolShape
from twolane.engine.cpu.sampler import Sampler
from twolane.engine.errors import EngineConfigError
from twolane.engine.model_files.architecture import read_architecture
from twolane.engine.model_files.checkpoint import Checkpoint
from twolane.engine.model_files.fingerprint import model_fingerprint
from twolane.engine.model_files.shard import Shard
from twolane.engine.model_files.weight_files import weights_revision
from twolane.engine.model_files.weights import load_weights, random_weights
from twolane.engine.parallel.collective import Collective, SingleRank
from twolane.engine.parallel.pool_file import map_pool
from twolane.engine.progress import Progress
from twolane.engine.step import (
    ByteArray,
    DevicePool,
    DoneStep,
    EngineSpec,
    RowResult,
    RowWork,
    Step,
    row_error,
)


class CpuEngine:
    """Implements `twolane.engine.step.Engine`. Created by `load_engine`."""

    def __init__(self, spec: EngineSpec, model: Model, pool: KVPool, *, threads: int) -> None:
        self.spec = spec
        self.pool: ByteArray = pool.bytes_view
        self.device_pool: DevicePool | None = None
        self.steps_ahead = 0
        self._model = model
        self._kv: KVPool | None = pool
        self._threads = threads
        self._sampler = Sampler(spec.vocab_size, spec.eos_token_ids)

    def submit(self, work: Sequence[RowWork]) -> Step:
        """Computes before it returns, so no step is pipelined."""
        return DoneStep(self.run(work))

    def only_launches(self, work: Sequence[RowWork]) -> bool:
        """It computes."""
        return False

    def run(self, work: Sequence[RowWork]) -> list[RowResult]:
        """See `twolane.engine.step.Engine.run`. An empty batch gives an empty list."""
        assert self._kv is not None, "the engine is closed"
        errors = [row_error(row, self.spec) for row in work]
        results = [RowResult(row.row, error=text) for row, text in zip(work, errors, strict=True)]
        sound = [i for i, text in enumerate(errors) if not text]
        if sound:
            use_threads(self._threads)
            with torch.inference_mode():
                made = self._run_sound([work[i] for i in sound], self._kv)
            for i, result in zip(sound, made, strict=True):
                results[i] = result
        return results

    def close(self) -> None:
        """Drop the pool; memory passed to `load_engine` still belongs to its owner. May be called
        twice."""
        self._kv = None
        self.pool = np.zeros((0, self.spec.page_bytes), np.uint8)

    def _run_sound(self, work: list[RowWork], kv: KVPool) -> list[RowResult]:
        packed = pack(work, self.spec.page_tokens)
        last = packed.offsets + packed.lengths - 1
        kv.zero_tail(packed.token_pages[last].tolist(), (packed.token_slots[last] + 1).tolist())
        hidden = self._model.forward(packed, kv, torch.from_numpy(last))
        finite = torch.isfinite(hidden).all(dim=-1).tolist()
        sampled = [i for i, row in enumerate(work) if row.sample and finite[i]]
        results = [
            RowResult(row.row, error="" if fine else "the model's activations are not finite")
            for row, fine in zip(work, finite, strict=True)
        ]
        if sampled:
            rows = [work[i] for i in sampled]
            logits = self._model.logits(hidden.index_select(0, torch.tensor(sampled)))
            for i, token in zip(sampled, self._sampler.sample(logits, rows), strict=True):
                name = work[i].row
                if isinstance(token, str):
                    results[i] = RowResult(name, error=token)
                else:
                    results[i] = RowResult(name, (token,))
        return results


def load_engine(
    config: EngineConfig,
    *,
    pool_memory: memoryview | None = None,
    progress: Progress | None = None,
    ranks: Collective | None = None,
    pool_fd: int | None = None,
) -> CpuEngine:
    """Read a model and return an engine for it; with `ranks`, for one rank's part of it, and with
    `pool_fd` in the file that holds the pages of all ranks (`twolane.engine.parallel.pool_file`).

    `pool_memory`: a writable buffer of at least n_pages * page_bytes to use as the pool (it must
    outlive the engine); `progress` is called during loading. Sets the process's thread count.
    Raises ModelLoadError or EngineConfigError.
    """
    if config.weights == "fp8" or config.kv_dtype == "fp8":
        raise EngineConfigError("weights and kv_dtype fp8 need a GPU; on a CPU they must be auto")
    arch = read_architecture(config.model_dir)
    context = config.context_for(arch.max_position)
    page_tokens = config.page_tokens or CPU_PAGE_TOKENS
    dtype: torch.dtype = getattr(torch, config.dtype)
    ranks = ranks or SingleRank()
    shard = Shard(ranks.rank, ranks.ranks)
    local = shard.local(arch)
    use_threads(config.threads)
    with torch.inference_mode():
        if config.load_format == "random":
            revision = f"random {config.seed}"
            weights = random_weights(arch, dtype, config.seed, progress, shard=shard)
        else:
            with Checkpoint(config.model_dir) as checkpoint:
                revision = weights_revision(checkpoint.files)
                weights = load_weights(arch, checkpoint, dtype, progress, shard=shard)
        product: Product = plain_product
        if config.exact:
            product = tiled = TiledProduct()
            for weight in matrices(weights):
                tiled.probe(weight)
        attention = Attention(
            group=local.group, head_dim=arch.head_dim, exact=config.exact, threads=config.threads
        )
        model = Model(
            local,
            weights,
            product=product,
            attention=attention,
            max_context_tokens=context,
            fused_silu=config.threads == 1 or not config.exact,
            ranks=ranks,
        )
    shape = PoolShape(
        layers=arch.layers,
        kv_heads=local.kv_heads,
        head_dim=arch.head_dim,
        page_tokens=page_tokens,
        dtype=dtype,
        ranks=ranks.ranks,
        whole_kv_heads=arch.kv_heads,
    )
    n_pages = config.pages_for(shape.page_bytes)
    if pool_fd is None:
        pool = KVPool(shape, n_pages, memory=pool_memory)
    else:
        assert pool_memory is None, "pool_fd and pool_memory exclude each other"
        file = map_pool(pool_fd, n_pages * shape.page_bytes * ranks.ranks)
        pool = KVPool(shape, n_pages, memory=file, rank=ranks.rank)
    spec = EngineSpec(
        model=config.model_name or config.model_dir.resolve().name,
        fingerprint=model_fingerprint(
            arch,
            revision=revision,
            dtype=config.dtype,
            exact=config.exact,
            threads=config.threads,
            attention=attention.name,
            ranks=ranks.ranks,
        ),
        n_pages=n_pages,
        page_tokens=page_tokens,
        page_bytes=shape.page_bytes,
        layout=shape.layout,
        max_context_tokens=context,
        vocab_size=arch.vocab_size,
        eos_token_ids=arch.eos_token_ids,
        exact=config.exact,
    )
    return CpuEngine(spec, model, pool, threads=config.threads)


def use_threads(threads: int) -> None:
    """Set torch's number of compute threads, for this thread of the process too."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
