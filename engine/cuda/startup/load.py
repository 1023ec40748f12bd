"""Loads a model directory into a CudaEngine: weights go directly into fused device parameters."""

from __future__ import annotations

import torch

from twolane.engine.config import GPU_PAGE_TOKENS, NOT_EXACT, EngineConfig
from twolane.engine.cuda.all_reduce import AllReduce
from twolane.engine.cuda.engine import CudaEngine
from twolane.engine.cuda.memory import RawMemory
from twolane.engine.cuda.peers import share_buffers
from twolane.engine.cuda.plans import STEP_ROWS
from twolane.engine.cuda.startup.blueprint import Blueprint
from twolane.engine.cuda.startup.warmup import Warmup
from twolane.engine.cuda.tuning import DEFAULT_TUNING, Tuning
from twolane.engine.errors import EngineConfigError, UnsupportedModelError
from twolane.engine.kernels.rows.all_reduce import MAX_WIDTH
from twolane.engine.model_files.architecture import Architecture, read_architecture
from twolane.engine.model_files.checkpoint import Checkpoint
from twolane.engine.model_files.fingerprint import model_fingerprint
from twolane.engine.model_files.shard import Shard
from twolane.engine.model_files.weight_files import weights_revision
from twolane.engine.model_files.weights import Weights, load_weights, random_weights
from twolane.engine.parallel.collective import Collective, SingleRank, least
from twolane.engine.progress import Progress
from twolane.engine.step import EngineSpec

KV_SHARE = 0.9  # of the memory that weights leave free, if no size is set
FP8_WIDTH = 16  # widths of FP8 products must be multiples of this
SPARE_BYTES = 4 << 30  # activations, graphs, libraries
HEAD_DIM_STEP, MOST_HEAD_DIM = 16, 256  # supported by attention's products and copies
_SUMMATION = "triton, streamed products"  # of exact mode: another name where its bits change
_ADVICE = "try --weights fp8, more GPUs (--tensor-parallel), or fewer --pages or --kv-bytes"


def load_cuda_engine(
    config: EngineConfig,
    *,
    device: torch.device | None = None,
    progress: Progress | None = None,
    tuning: Tuning = DEFAULT_TUNING,
    ranks: Collective | None = None,
) -> CudaEngine:
    """Read a model onto the device; with `ranks`, one rank's part of it. Raises ModelLoadError,
    EngineConfigError or MemoryError.

    `progress` is called during loading.
    """
    device = device or torch.device("cuda", torch.cuda.current_device())
    arch = read_architecture(config.model_dir)
    _check_kernels(config, arch)
    try:
        return _load(config, arch, device, progress, tuning, ranks or SingleRank())
    except torch.OutOfMemoryError as error:
        raise MemoryError(f"{_room_on(device)} and the model needs more: {_ADVICE}") from error


def _load(
    config: EngineConfig,
    arch: Architecture,
    device: torch.device,
    progress: Progress | None,
    tuning: Tuning,
    ranks: Collective,
) -> CudaEngine:
    shard = Shard(ranks.rank, ranks.ranks)
    blueprint = Blueprint(
        config=config,
        arch=arch,
        shard=shard,
        fp8=_has_fp8_weights(config, shard.local(arch), device),
        tuning=tuning,
    )
    warmup = Warmup(blueprint, device, progress)
    with torch.inference_mode(), warmup:
        weights, revision = _weights(blueprint, device, progress)
        if config.exact:
            # The library adds up split sums in an order of its choice.
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        warmup.wait_for_kernels()
        products = blueprint.products(weights)  # exact mode probes, with kernels of ours
        all_reduce = _all_reduce(
            ranks, arch, blueprint.dtype, device, peer_all_reduce=config.peer_all_reduce
        )
        shape = blueprint.pool
        n_pages = least(ranks, _n_pages(config, shape.page_bytes, device), device)
        memory = RawMemory(n_pages * shape.page_bytes, device)
        latest = torch.zeros(2, STEP_ROWS, dtype=torch.int32, device=device)
        model = blueprint.model(
            weights, memory.tensor, products=products, latest=latest[0], all_reduce=all_reduce
        )
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the engine's stream does not wait for this one
    spec = EngineSpec(
        model=config.model_name or config.model_dir.resolve().name,
        fingerprint=model_fingerprint(
            arch,
            revision=revision,
            dtype=config.dtype,
            exact=config.exact,
            threads=1,
            attention=_SUMMATION,
            device=_device_name(device),
            fp8_weights=blueprint.fp8,
            kv_dtype=config.kv_dtype,
            ranks=ranks.ranks,
        ),
        n_pages=n_pages,
        page_tokens=blueprint.page_tokens,
        page_bytes=shape.page_bytes,
        layout=shape.layout,
        max_context_tokens=blueprint.context,
        vocab_size=arch.vocab_size,
        eos_token_ids=arch.eos_token_ids,
        indexes_answers=not config.exact,  # decode writes other bits than chunks of a prompt
        max_step_rows=STEP_ROWS,
        exact=config.exact,
    )
    engine = CudaEngine(
        spec, model, memory, latest=latest, table_pages=blueprint.table_pages, exact=config.exact,
        all_reduce=all_reduce, graphed_tokens=tuning.graphed_tokens,
    )  # fmt: skip
    try:
        warmup.make_passes(engine)
    except BaseException:
        engine.close()
        raise
    return engine


def _all_reduce(
    ranks: Collective,
    arch: Architecture,
    dtype: torch.dtype,
    device: torch.device,
    *,
    peer_all_reduce: bool,
) -> AllReduce | None:
    if ranks.ranks == 1:
        return None
    peers = None
    # Ranks on one card take turns: their kernels would wait for each other forever.
    may_meet = device.type == "cuda" and not ranks.waits
    if peer_all_reduce and may_meet and arch.hidden_size <= MAX_WIDTH:
        peers = share_buffers(ranks, width=arch.hidden_size, dtype=dtype, device=device)
    return AllReduce(ranks, peers)


def _weights(
    blueprint: Blueprint, device: torch.device, progress: Progress | None
) -> tuple[Weights, str]:
    config, arch, dtype = blueprint.config, blueprint.arch, blueprint.dtype
    shard, fp8 = blueprint.shard, blueprint.fp8
    with device:
        if config.load_format == "random":
            revision = f"random {config.seed} {device.type}"
            drawn = random_weights(arch, dtype, config.seed, progress, shard=shard, fp8=fp8)
            return drawn, revision
        with Checkpoint(config.model_dir) as checkpoint:
            return (
                load_weights(arch, checkpoint, dtype, progress, shard=shard, fp8=fp8),
                weights_revision(checkpoint.files),
            )


def _has_fp8_weights(config: EngineConfig, arch: Architecture, device: torch.device) -> bool:
    """Whether products are FP8. Raises EngineConfigError if they cannot be."""
    if config.weights == "auto" and not arch.stores_fp8:
        return False
    if config.exact:
        raise EngineConfigError(NOT_EXACT)
    if device.type == "cuda" and config.dtype != "bfloat16":
        raise EngineConfigError(f"FP8 weights need dtype bfloat16; it is {config.dtype}")
    for width in (arch.hidden_size, arch.intermediate_size, arch.heads * arch.head_dim):
        if width % FP8_WIDTH:
            raise EngineConfigError(
                f"FP8 weights need widths that are multiples of {FP8_WIDTH}; one is {width}"
            )
    return True


def _n_pages(config: EngineConfig, page_bytes: int, device: torch.device) -> int:
    """As configured; otherwise most of the free memory."""
    if device.type != "cuda" or config.n_pages is not None or config.kv_bytes is not None:
        return config.pages_for(page_bytes)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    n_pages = int((free - SPARE_BYTES) * KV_SHARE) // page_bytes
    if n_pages < 1:
        raise MemoryError(
            f"{_room_on(device)}: {SPARE_BYTES / 2**30:.1f} GiB are set aside for activations, "
            f"graphs and libraries, {1 - KV_SHARE:.0%} of the rest are left free, and "
            f"a page takes {page_bytes / 2**20:.1f} MiB: {_ADVICE}"
        )
    return n_pages


def _room_on(device: torch.device) -> str:
    free, total = torch.cuda.mem_get_info(device)
    return f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB are free on {device}"


def _check_kernels(config: EngineConfig, arch: Architecture) -> None:
    """Refuse what no kernel supports, or what kernels were not built and tested for."""
    if arch.head_dim % HEAD_DIM_STEP or arch.head_dim > MOST_HEAD_DIM:
        raise UnsupportedModelError(
            f"head_dim is {arch.head_dim}; on a GPU it must be a multiple of {HEAD_DIM_STEP}, and "
            f"at most {MOST_HEAD_DIM} (--device cpu takes it)"
        )
    if config.page_tokens not in (None, GPU_PAGE_TOKENS):
        raise EngineConfigError(
            f"page_tokens is {config.page_tokens}; on a GPU it must be {GPU_PAGE_TOKENS}"
        )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
