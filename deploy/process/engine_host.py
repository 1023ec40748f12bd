"""Opens the engine of a `ModelSpec`, with its pool in memory that peers on this host can map."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from twolane.deploy.errors import StartError
from twolane.deploy.process.host_memory import check_room
from twolane.deploy.process.loading import LoadingLines
from twolane.deploy.spec.specs import ModelSpec
from twolane.engine.config import CPU_PAGE_TOKENS, GPU_PAGE_TOKENS, EngineConfig
from twolane.engine.config_fields import read_config, size_of
from twolane.engine.errors import EngineError
from twolane.engine.fake import FakeEngine, FakeEngineConfig
from twolane.engine.ranks.group import RankGroup
from twolane.engine.step import Engine
from twolane.kvtransfer.transports.common.shared_memory import PoolMemory, create_pool_memory
from twolane.kvtransfer.transports.registry import AnyPool
from twolane.worker.config import StepLimits

FAKE_PAGES = 4096
MIN_PAGES = 3  # two of a prompt, and one for the answer to grow into


@dataclass(frozen=True, slots=True)
class OpenedEngine:
    """An open engine. `on_gpu`: it computes on one GPU or several. `memory`: the shared memory of
    its pool, if that was requested. `runs_on`: device and dtype for display, like `cuda
    bfloat16`."""

    engine: Engine
    on_gpu: bool
    memory: PoolMemory | None
    runs_on: str = ""

    @property
    def pages(self) -> AnyPool | None:
        """The memory that transports move: the host's or the GPUs'. None for ranks whose GPUs
        cannot map each other's memory."""
        if self.engine.device_pool is not None:
            from twolane.worker.cuda.memory import CudaMemory  # needs a GPU's libraries

            return CudaMemory(self.engine.device_pool, self.engine.spec.page_bytes)
        return self.engine.pool if self.engine.pool.size else None

    async def watch(self) -> None:
        """Never returns. For an engine whose ranks are processes, raises as soon as one of them is
        lost, even while no step is running."""
        loop = asyncio.get_running_loop()
        lost: asyncio.Future[None] = loop.create_future()

        def tell(error: Exception) -> None:
            if not lost.done():
                lost.set_exception(error)

        def tell_loop(error: Exception) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(tell, error)

        if isinstance(self.engine, RankGroup):
            self.engine.on_lost(tell_loop)
        await lost


@contextmanager
def open_engine(
    spec: ModelSpec, *, name: str, is_shared: bool, ready: StepLimits | None = None
) -> Iterator[OpenedEngine]:
    """Load the model, and close everything at the end. Raises `StartError` with the engine's
    message.

    With `is_shared` the pool is allocated as shared memory under `name`, unless it is on a GPU. On
    a GPU, kernels for all steps within the limits `ready` are compiled before this yields.
    """
    memory = None
    try:
        is_fake = spec.engine == "fake"
        loader = _FakeLoader(spec.config) if is_fake else _ModelLoader(spec.config, ready)
        if loader.n_pages is not None:
            _check_pages(loader.n_pages, loader.page_tokens)
        check_room(loader.host_bytes)
        if is_shared and loader.host_bytes:
            memory = create_pool_memory(loader.host_bytes, name)
        engine = loader.load(memory)
    except (EngineError, OSError, MemoryError) as error:
        if memory is not None:
            memory.close()
        raise StartError(str(error)) from error
    try:
        _check_pages(engine.spec.n_pages, engine.spec.page_tokens)
        yield OpenedEngine(engine, loader.on_gpu, memory, loader.runs_on)
    finally:
        engine.close()
        if memory is not None:
            memory.close()


def _check_pages(n_pages: int, page_tokens: int) -> None:
    if n_pages < MIN_PAGES:
        raise StartError(
            f"a pool of {n_pages} pages of {page_tokens} tokens is too small to answer anything: "
            f"at least {MIN_PAGES} are needed (--pages, --kv-bytes)"
        )


@contextmanager
def _no_collector() -> Iterator[None]:
    """Imports torch in 1.4 s of CPU time instead of 1.6: what a module defines is never garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _ModelLoader:
    """Loads a model. `n_pages`: None if it depends on the GPU memory that the weights leave free.
    `host_bytes`: host memory that the pools of all ranks take; 0 on a GPU."""

    def __init__(self, config: EngineConfig, ready: StepLimits | None) -> None:
        with _no_collector():
            import torch  # a fake engine does without

        from twolane.engine.cpu.pool import PoolShape
        from twolane.engine.load import settle
        from twolane.engine.model_files.architecture import read_architecture
        from twolane.engine.model_files.fp8 import FP8
        from twolane.engine.model_files.shard import Shard

        if ready is not None:
            config = replace(config, ready_rows=ready.decode_rows, ready_tokens=ready.step_tokens)
        self._config = config = settle(config)
        self.host_bytes = 0
        self.on_gpu = config.device == "cuda"
        self.runs_on = _runs_on(config)
        self.n_pages: int | None = None
        usual = GPU_PAGE_TOKENS if self.on_gpu else CPU_PAGE_TOKENS
        self.page_tokens = config.page_tokens or usual
        if self.on_gpu and config.n_pages is None and config.kv_bytes is None:
            return
        arch = read_architecture(config.model_dir)
        shape = PoolShape(
            layers=arch.layers,
            kv_heads=Shard(0, config.tensor_parallel).local(arch).kv_heads,
            head_dim=arch.head_dim,
            page_tokens=self.page_tokens,
            dtype=FP8 if config.kv_dtype == "fp8" else getattr(torch, config.dtype),
        )
        self.n_pages = config.pages_for(shape.page_bytes)
        if self.on_gpu:
            return
        self.host_bytes = self.n_pages * shape.page_bytes * config.tensor_parallel

    def load(self, memory: PoolMemory | None) -> Engine:
        from twolane.engine.load import load_engine

        return load_engine(
            self._config,
            pool_memory=None if memory is None else memory.array.data,
            pool_fd=None if memory is None else memory.fd,
            progress=LoadingLines(self._config.model_name),
        )


def _runs_on(config: EngineConfig) -> str:
    """Device and dtypes for display, like `2 x cuda bfloat16, fp8 weights, fp8 pages`."""
    ranks = f"{config.tensor_parallel} x " if config.tensor_parallel > 1 else ""
    fp8 = [(config.weights, "fp8 weights"), (config.kv_dtype, "fp8 pages")]
    return ", ".join(
        [
            f"{ranks}{config.device} {config.dtype}",
            *(words for given, words in fp8 if given == "fp8"),
        ]
    )


class _FakeLoader:
    """Makes a fake engine. It reads the vocabulary size from the model's config.json, so that the
    tokenizer fits, and `echoes`, `fake_paced` and the times of its steps, with which tests choose
    the answers and their pace."""

    on_gpu = False
    runs_on = "fake engine"

    def __init__(self, config: EngineConfig) -> None:
        self._config = fake_engine_config(config)
        self.page_tokens = self._config.page_tokens
        self.n_pages: int | None = self._config.n_pages
        self.host_bytes = self._config.n_pages * self._config.page_bytes

    def load(self, memory: PoolMemory | None) -> Engine:
        return FakeEngine(self._config, memory=None if memory is None else memory.array.data)


def fake_engine_config(config: EngineConfig) -> FakeEngineConfig:
    """The fake engine of a model: see `_FakeLoader`."""
    facts = read_config(config.model_dir / "config.json")
    limit, usual = size_of(facts, "max_position_embeddings"), FakeEngineConfig()
    vocab_size = size_of(facts, "vocab_size")
    page_tokens = config.page_tokens or usual.page_tokens
    from_bytes = (config.kv_bytes or 0) // FakeEngineConfig(page_tokens=page_tokens).page_bytes
    return FakeEngineConfig(
        model=config.model_name,
        revision=str(facts.get("fake_revision", "")),
        n_pages=config.n_pages or from_bytes or FAKE_PAGES,
        page_tokens=page_tokens,
        vocab_size=vocab_size,
        first_token=min(3, vocab_size - 1),  # smaller ids are mostly special tokens
        max_context_tokens=min(config.max_context_tokens or limit, limit),
        hangs_by_file=facts.get("fake_hangs_by_file", ""),
        echoes=bool(facts.get("echoes")),
        step_overhead_s=float(facts.get("fake_step_s", usual.step_overhead_s)),
        prefill_token_s=float(facts.get("fake_prefill_token_s", usual.prefill_token_s)),
        decode_row_s=float(facts.get("fake_decode_row_s", usual.decode_row_s)),
        is_paced=bool(facts.get("fake_paced")),
    )
