"""From a model directory to a CudaEngine: weights straight into fused parameters on the device."""

from __future__ import annotations

import torch

from engine.architecture import Architecture, read_architecture
from engine.checkpoint import Checkpoint, weights_revision
from engine.config import GPU_PAGE_TOKENS, NOT_EXACT, EngineConfig
from engine.cuda.engine import CudaEngine
from engine.cuda.memory import RawMemory
from engine.cuda.model import CudaModel
from engine.cuda.peers import share_buffers
from engine.cuda.plans import STEP_ROWS, DecodePlans
from engine.cuda.products import Products
from engine.cuda.sums import RankSums
from engine.cuda.tuning import USUAL, Tuning
from engine.errors import EngineConfigError, UnsupportedModelError
from engine.fingerprint import model_fingerprint
from engine.fp8 import FP8
from engine.kernels.rank_sum import MAX_WIDTH
from engine.kernels.view import KVView
from engine.model import matrices
from engine.pool import PoolShape
from engine.progress import Progress
from engine.ranks.collective import Alone, Collective, least
from engine.ranks.shard import Shard
from engine.step import EngineSpec
from engine.weights import Weights, load_weights, random_weights

KV_SHARE = 0.9  # of the memory that weights leave free, where no size is given
FP8_WIDTH = 16  # widths of FP8 products are multiples of it
SPARE_BYTES = 4 << 30  # activations, graphs, libraries
HEAD_DIM_STEP, MOST_HEAD_DIM = 16, 256  # what attention's products and copies take
_ADVICE = "try --weights fp8, more GPUs (--tensor-parallel), or fewer --pages or --kv-bytes"


def load_cuda_engine(
    config: EngineConfig,
    *,
    device: torch.device | None = None,
    progress: Progress | None = None,
    tuning: Tuning = USUAL,
    ranks: Collective | None = None,
) -> CudaEngine:
    """Read a model onto the device; with `ranks`, one rank's part of it. Raises ModelLoadError,
    EngineConfigError or MemoryError.

    `progress` is called along the way.
    """
    device = device or torch.device("cuda", torch.cuda.current_device())
    arch = read_architecture(config.model_dir)
    _check_kernels(config, arch)
    try:
        return _load(config, arch, device, progress, tuning, ranks or Alone())
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
    context = config.context_for(arch.max_position)
    dtype: torch.dtype = getattr(torch, config.dtype)
    page_tokens = config.page_tokens or GPU_PAGE_TOKENS
    shard = Shard(ranks.rank, ranks.ranks)
    local = shard.local(arch)
    fp8 = _has_fp8_weights(config, local, device)
    kv_dtype = FP8 if config.kv_dtype == "fp8" else dtype
    with torch.inference_mode():
        weights, revision = _weights(config, arch, dtype, device, progress, shard, fp8=fp8)
        products = Products(exact=config.exact, dtype=dtype, tuning=tuning)
        if config.exact:
            # A sum that is split is added up in an order of the library's choosing.
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
            for weight in matrices(weights):
                products.probe(weight)
        shape = PoolShape(
            layers=arch.layers,
            kv_heads=local.kv_heads,
            head_dim=arch.head_dim,
            page_tokens=page_tokens,
            dtype=kv_dtype,
            ranks=ranks.ranks,
            whole_kv_heads=arch.kv_heads,
        )
        sums = _sums(ranks, arch, dtype, device, peer_sums=config.peer_sums)
        n_pages = least(ranks, _n_pages(config, shape.page_bytes, device), device)
        memory = RawMemory(n_pages * shape.page_bytes, device)
        view = KVView(
            values=memory.tensor.view(kv_dtype),
            layers=arch.layers,
            kv_heads=local.kv_heads,
            head_dim=arch.head_dim,
            page_tokens=page_tokens,
        )
        table_pages = -(-context // (4 * page_tokens)) * 4  # rows of 16 bytes: one kernel for all
        latest = torch.zeros(2, STEP_ROWS, dtype=torch.int32, device=device)
        model = CudaModel(
            local,
            weights,
            view,
            products=products,
            plans=DecodePlans(
                local,
                page_tokens=page_tokens,
                table_pages=table_pages,
                exact=config.exact,
                device=device,
            ),
            latest=latest[0],
            max_context_tokens=context,
            exact=config.exact,
            overlap=tuning.overlap,
            sums=sums,
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
            attention="triton",
            device=_device_name(device),
            fp8_weights=fp8,
            kv_dtype=config.kv_dtype,
            ranks=ranks.ranks,
        ),
        n_pages=n_pages,
        page_tokens=page_tokens,
        page_bytes=shape.page_bytes,
        layout=shape.layout,
        max_context_tokens=context,
        vocab_size=arch.vocab_size,
        eos_token_ids=arch.eos_token_ids,
        indexes_answers=not config.exact,  # decode writes other bits than a prompt's chunks
        max_step_rows=STEP_ROWS,
    )
    return CudaEngine(
        spec, model, memory, latest=latest, table_pages=table_pages, exact=config.exact, sums=sums
    )


def _sums(
    ranks: Collective,
    arch: Architecture,
    dtype: torch.dtype,
    device: torch.device,
    *,
    peer_sums: bool,
) -> RankSums | None:
    if ranks.ranks == 1:
        return None
    peers = None
    # Ranks of one card take turns on it: their kernels would wait for each other, not meet.
    may_meet = device.type == "cuda" and not ranks.waits
    if peer_sums and may_meet and arch.hidden_size <= MAX_WIDTH:
        peers = share_buffers(ranks, width=arch.hidden_size, dtype=dtype, device=device)
    return RankSums(ranks, peers)


def _weights(
    config: EngineConfig,
    arch: Architecture,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None,
    shard: Shard,
    *,
    fp8: bool,
) -> tuple[Weights, str]:
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
    """Whether products are to be FP8. Raises EngineConfigError where they cannot be."""
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
    """As asked for; otherwise most of what is free."""
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
    """Refuse what no kernel takes, or what kernels have not been built and tested for."""
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
