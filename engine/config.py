"""What an engine is started with: `EngineConfig`, checked where it is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.errors import EngineConfigError

DTYPES = ("float32", "bfloat16")
DEVICES = ("auto", "cpu", "cuda")
LOAD_FORMATS = ("safetensors", "random")
WEIGHTS = ("auto", "fp8")
KV_DTYPES = ("auto", "fp8")
CPU_PAGE_TOKENS = 16  # where none are given
GPU_PAGE_TOKENS = 64  # always: kernels are built and tested for pages of so many
DEFAULT_KV_BYTES = 256 << 20
MAX_THREADS = 256
MAX_RANKS = 8
NOT_EXACT = "products of FP8 weights depend on the batch: exact mode needs weights of another dtype"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of one engine. Give `n_pages` or `kv_bytes`, or neither: 256 MiB of pages on a CPU,
    most of the memory that is free on a GPU.

    `exact` makes a row's tokens and log-probabilities independent of its company and its path; it
    holds among engines of equal dtype, threads and build. On a CPU it costs a few percent, at batch
    1 in float32 a quarter (benchmarks/engine_cpu.py); on a GPU a third at batch 1, less at larger
    ones (benchmarks.engine --exact). `threads` is the process's number of compute threads: engines
    that share a process should agree on it.
    `device` auto is cuda where there is one. `page_tokens` None is 16 on a CPU; on a GPU it is 64.
    `max_context_tokens` None means the model's own limit. `seed` is that of random weights.

    `weights` fp8 rounds the layers' matrices to FP8 as they are loaded; auto takes them as they are
    stored. `kv_dtype` fp8 keeps keys and values in FP8; auto in `dtype`. Either needs a GPU (a CPU
    reads FP8 checkpoints into `dtype`), and products of FP8 weights are not exact.

    `tensor_parallel` ranks share the model, each with `threads`, or a GPU, and a pool of `n_pages`
    or `kv_bytes` of its own (see `engine.ranks`); exactness holds for equal numbers of ranks. On
    GPUs, `peer_sums` lets them add up small tensors through each other's memory; else NCCL does.
    With `share_gpus`, ranks for which there are too few share them: slowly, as sums then go by way
    of the host, and each takes the pages that it is told to.

    On GPUs, steps of up to `ready_rows` decode rows and `ready_tokens` positions are made ready for
    before the engine is there: none of them then waits for a compiler or for the capture of a
    graph. Larger ones do, once each; with zeros, all do.
    """

    model_dir: Path
    model_name: str = ""  # shown to users; the directory's name where empty
    dtype: str = "float32"
    n_pages: int | None = None
    kv_bytes: int | None = None
    page_tokens: int | None = None
    exact: bool = True
    device: str = "cpu"
    threads: int = 1
    max_context_tokens: int | None = None
    load_format: str = "safetensors"
    seed: int = 0
    weights: str = "auto"
    kv_dtype: str = "auto"
    tensor_parallel: int = 1
    peer_sums: bool = True
    ready_rows: int = 0
    ready_tokens: int = 0
    share_gpus: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise EngineConfigError(f"dtype is {self.dtype!r}; it must be {' or '.join(DTYPES)}")
        if self.load_format not in LOAD_FORMATS:
            known = " or ".join(LOAD_FORMATS)
            raise EngineConfigError(f"load_format is {self.load_format!r}; it must be {known}")
        self._check_fp8()
        if self.n_pages is not None and self.kv_bytes is not None:
            raise EngineConfigError("n_pages and kv_bytes both say how large the pool is: give one")
        for name in ("n_pages", "kv_bytes", "max_context_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise EngineConfigError(f"{name} is {value}; it must be at least 1")
        if self.device not in DEVICES:
            known = ", ".join(DEVICES)
            raise EngineConfigError(f"device is {self.device!r}; it must be one of {known}")
        if self.page_tokens is not None and (self.page_tokens < 16 or self.page_tokens % 16):
            raise EngineConfigError(
                f"page_tokens is {self.page_tokens}; it must be a multiple of 16"
            )
        for name in ("ready_rows", "ready_tokens"):
            if getattr(self, name) < 0:
                raise EngineConfigError(f"{name} is {getattr(self, name)}; it must be at least 0")
        if not 1 <= self.threads <= MAX_THREADS:
            raise EngineConfigError(f"threads is {self.threads}; it must be 1 to {MAX_THREADS}")
        if not 1 <= self.tensor_parallel <= MAX_RANKS:
            raise EngineConfigError(
                f"tensor_parallel is {self.tensor_parallel}; it must be 1 to {MAX_RANKS}"
            )

    def _check_fp8(self) -> None:
        if self.weights not in WEIGHTS:
            raise EngineConfigError(f"weights is {self.weights!r}; it must be auto or fp8")
        if self.kv_dtype not in KV_DTYPES:
            raise EngineConfigError(f"kv_dtype is {self.kv_dtype!r}; it must be auto or fp8")
        if self.weights == "fp8" and self.exact:
            raise EngineConfigError(NOT_EXACT)
        if self.kv_dtype == "fp8" and self.page_tokens not in (None, GPU_PAGE_TOKENS):
            raise EngineConfigError(
                f"page_tokens is {self.page_tokens}; with kv_dtype fp8 it must be {GPU_PAGE_TOKENS}"
            )

    def pages_for(self, page_bytes: int) -> int:
        """How many pages of that size the pool holds; at least one must fit."""
        if self.n_pages is not None:
            return self.n_pages
        budget = DEFAULT_KV_BYTES if self.kv_bytes is None else self.kv_bytes
        if budget < page_bytes:
            raise EngineConfigError(f"kv_bytes is {budget}; one page takes {page_bytes}")
        return budget // page_bytes

    def context_for(self, model_limit: int) -> int:
        """Positions that a row may have, given those of the model."""
        context = self.max_context_tokens or model_limit
        if context > model_limit:
            raise EngineConfigError(
                f"max_context_tokens is {context}; the model's positions end at {model_limit}"
            )
        return context
