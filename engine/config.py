"""The configuration of an engine: `EngineConfig`, checked on construction."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from twolane.engine.errors import EngineConfigError
from twolane.options import option

DTYPES = ("float32", "bfloat16")
PAGE_TOKENS_STEP = 16  # a page holds a multiple of this
CPU_PAGE_TOKENS = 16  # the default
GPU_PAGE_TOKENS = 64  # fixed: kernels are built and tested for this size
DEFAULT_KV_BYTES = 256 << 20
MAX_THREADS = 256
MAX_RANKS = 8
NOT_EXACT = "products of FP8 weights depend on the batch: exact mode needs weights of another dtype"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of one engine. Set `n_pages` or `kv_bytes`, or neither: 256 MiB of pages on a CPU,
    most of the free memory on a GPU.

    `exact` makes a row's tokens and log-probabilities independent of its batch and its path; it
    holds among engines of equal dtype, threads and build. On a CPU it costs a few percent, at batch
    1 in float32 a quarter (benchmarks/engine/cpu.py); on a GPU a third at batch 1, less at larger
    ones (benchmarks.engine.steps --exact). `threads` is the process's number of compute threads:
    engines that share a process should agree on it. `device` auto is cuda if there is a GPU;
    `dtype` auto is bfloat16 there, float32 on a CPU: `twolane.engine.load` resolves both.
    `page_tokens` None is 16 on a CPU; on a GPU it is 64. `max_context_tokens` None means the
    model's own limit. `seed` is for random weights.

    `weights` fp8 rounds the layers' matrices to FP8 as they are loaded; auto keeps them as they are
    stored. `kv_dtype` fp8 keeps keys and values in FP8; auto in `dtype`. Either needs a GPU (a CPU
    reads FP8 checkpoints into `dtype`), and products of FP8 weights are not exact.

    `tensor_parallel` ranks share the model, each with its own `threads`, or GPU, and its own pool
    of `n_pages` or `kv_bytes` (see `twolane.engine.ranks`); exactness holds for equal numbers of
    ranks. On GPUs, `peer_all_reduce` lets them all-reduce small tensors through each other's
    memory; otherwise NCCL does. With `share_gpus`, ranks share GPUs if there are too few: slowly,
    since all-reduce then goes through the host, and the number of pages must be set.

    On GPUs, the engine is warmed up for steps of up to `ready_rows` decode rows and `ready_tokens`
    positions before it is returned: none of them then waits for a compiler or a graph capture.
    Larger steps do, once each; with zeros, all do.
    """

    model_dir: Path
    model_name: str = ""  # shown to users; empty: the directory's name
    device: str = option(
        "cpu",
        "Where the model runs; auto: on a GPU where there is one.",
        usual="auto",
        choices=("auto", "cpu", "cuda"),
    )
    tensor_parallel: int = option(
        1, "GPUs that share each worker's model; on a CPU, processes.", least=1, most=MAX_RANKS
    )
    dtype: str = option(
        "float32",
        "Data type of weights and KV pages; auto: bfloat16 on a GPU, float32 on a CPU.",
        usual="auto",
        choices=("auto", *DTYPES),
    )
    weights: str = option(
        "auto",
        "fp8: rounded to FP8 as they are loaded; auto: as the model has them. On a GPU.",
        choices=("auto", "fp8"),
    )
    kv_dtype: str = option(
        "auto",
        "fp8: keys and values in FP8, half the memory; auto: as --dtype says. On a GPU.",
        choices=("auto", "fp8"),
    )
    exact: bool = option(
        True, "Same request, same bits: alone or in a crowd, on any path.", usual=False
    )
    n_pages: int | None = option(None, "KV pages of each worker.", name="pages", least=1)
    kv_bytes: int | None = option(
        None, "Instead of --pages: bytes of each worker's KV pages.", least=1
    )
    page_tokens: int | None = option(
        None,
        f"Tokens of a page, on a CPU: a multiple of {PAGE_TOKENS_STEP}; on a GPU they are always "
        f"{GPU_PAGE_TOKENS}.",
        least=1,
        multiple_of=PAGE_TOKENS_STEP,
    )
    max_context_tokens: int | None = option(None, "Less than the model's own limit.", least=1)
    load_format: str = option(
        "safetensors", "`random` weights are for benchmarks.", choices=("safetensors", "random")
    )
    threads: int = option(
        1,
        "Compute threads of each worker.  [default: its share of the cores]",
        least=1,
        most=MAX_THREADS,
    )
    seed: int = 0
    peer_all_reduce: bool = True
    ready_rows: int = 0
    ready_tokens: int = 0
    share_gpus: bool = False

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None or "option" not in each.metadata:
                continue
            if wanted := each.metadata["option"].wanted_instead_of(value):
                raise EngineConfigError(f"{each.name} is {value!r}; it must be {wanted}")
        if self.n_pages is not None and self.kv_bytes is not None:
            raise EngineConfigError("n_pages and kv_bytes both say how large the pool is: give one")
        for name in ("ready_rows", "ready_tokens"):
            if getattr(self, name) < 0:
                raise EngineConfigError(f"{name} is {getattr(self, name)}; it must be at least 0")
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
        """How many positions a row may have; at most `model_limit`."""
        context = self.max_context_tokens or model_limit
        if context > model_limit:
            raise EngineConfigError(
                f"max_context_tokens is {context}; the model's positions end at {model_limit}"
            )
        return context
