"""From a model directory to a CudaEngine: weights straight into fused parameters on the device."""

from __future__ import annotations

import torch

from engine.architecture import Architecture, read_architecture
from engine.checkpoint import Checkpoint, weights_revision
from engine.config import GPU_PAGE_TOKENS, EngineConfig
from engine.cuda.engine import CudaEngine
from engine.cuda.memory import RawMemory
from engine.cuda.model import CudaModel
from engine.cuda.plans import STEP_ROWS, DecodePlans
from engine.cuda.products import Products
from engine.cuda.tuning import USUAL, Tuning
from engine.errors import EngineConfigError
from engine.fingerprint import model_fingerprint
from engine.kernels.launch import APART
from engine.kernels.view import KVView
from engine.model import matrices
from engine.pool import PoolShape
from engine.step import EngineSpec
from engine.weights import Progress, Weights, load_weights, random_weights

KV_SHARE = 0.9  # of the memory that weights leave free, where no size is given
SPARE_BYTES = 4 << 30  # activations, graphs, libraries


def load_cuda_engine(
    config: EngineConfig,
    *,
    device: torch.device | None = None,
    progress: Progress | None = None,
    tuning: Tuning = USUAL,
) -> CudaEngine:
    """Read a model onto the device. Raises ModelLoadError, EngineConfigError or MemoryError.

    `progress(tensors read, tensors in all)` is called along the way.
    """
    device = device or torch.device("cuda", torch.cuda.current_device())
    arch = read_architecture(config.model_dir)
    context = config.context_for(arch.max_position)
    dtype: torch.dtype = getattr(torch, config.dtype)
    page_tokens = config.page_tokens or GPU_PAGE_TOKENS
    with torch.inference_mode():
        weights, revision = _weights(config, arch, dtype, device, progress)
        products = Products(exact=config.exact, tuning=tuning)
        if config.exact:
            # A sum that is split is added up in an order of the library's choosing.
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
            for weight in matrices(weights):
                products.probe(weight)
        shape = PoolShape(
            layers=arch.layers,
            kv_heads=arch.kv_heads,
            head_dim=arch.head_dim,
            page_tokens=page_tokens,
            dtype=dtype,
        )
        n_pages = _n_pages(config, shape.page_bytes, device)
        memory = RawMemory(n_pages * shape.page_bytes, device)
        view = KVView(
            values=memory.tensor.view(dtype),
            layers=arch.layers,
            kv_heads=arch.kv_heads,
            head_dim=arch.head_dim,
            page_tokens=page_tokens,
        )
        table_pages = -(-context // (4 * page_tokens)) * 4  # rows of 16 bytes: one kernel for all
        latest = torch.zeros(2, STEP_ROWS, dtype=torch.int32, device=device)
        model = CudaModel(
            arch,
            weights,
            view,
            products=products,
            plans=DecodePlans(
                arch,
                page_tokens=page_tokens,
                table_pages=table_pages,
                exact=config.exact,
                device=device,
            ),
            latest=latest[0],
            max_context_tokens=context,
            overlap=APART if config.exact else tuning.overlap,
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
        ),
        n_pages=n_pages,
        page_tokens=page_tokens,
        page_bytes=shape.page_bytes,
        layout=shape.layout,
        max_context_tokens=context,
        vocab_size=arch.vocab_size,
        eos_token_ids=arch.eos_token_ids,
        indexes_answers=not config.exact,  # decode writes other bits than a prompt's chunks
    )
    return CudaEngine(
        spec, model, memory, latest=latest, table_pages=table_pages, exact=config.exact
    )


def _weights(
    config: EngineConfig,
    arch: Architecture,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None,
) -> tuple[Weights, str]:
    with device:
        if config.load_format == "random":
            revision = f"random {config.seed} {device.type}"
            return random_weights(arch, dtype, config.seed), revision
        with Checkpoint(config.model_dir) as checkpoint:
            return (
                load_weights(arch, checkpoint, dtype, progress),
                weights_revision(checkpoint.files),
            )


def _n_pages(config: EngineConfig, page_bytes: int, device: torch.device) -> int:
    """As asked for; otherwise most of what is free."""
    if device.type != "cuda" or config.n_pages is not None or config.kv_bytes is not None:
        return config.pages_for(page_bytes)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    n_pages = int((free - SPARE_BYTES) * KV_SHARE) // page_bytes
    if n_pages < 1:
        raise EngineConfigError(f"{free} bytes are free on {device}; one page takes {page_bytes}")
    return n_pages


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
