"""Launches `prefill_hopper`'s kernel: which pools it supports, and with how many programs."""

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from twolane.engine.kernels.attention.prefill_hopper import overlapped_kernel
from twolane.engine.kernels.attention.prefill_plan import TILE_RECORD
from twolane.engine.kernels.box_layout import box_layout
from twolane.engine.kernels.launch import card_of, launch
from twolane.engine.kernels.pages.kv_view import KVView

BLOCK_TOKENS = 128  # two groups of 64
_GROUP_TOKENS = 64
_WARPS = 4  # per group
_REGISTERS = (240, 24)  # per thread, of the second group and of the producer warp


def can_overlap(view: KVView) -> bool:
    """Whether the kernel supports this pool (the card must be a Hopper, too)."""
    return (
        card_of(view.values.device) is not None
        and view.values.dtype in (torch.bfloat16, torch.float16)
        and view.head_dim in (64, 128)
        and view.page_tokens == 64
    )


def _rows(values: torch.Tensor, shape: list[int], stride: int, box: list[int]) -> TensorDescriptor:
    """The matrix in `values`, whose rows are `stride` values apart, to be copied in `box`es."""
    rows, columns = box
    layout = box_layout(rows, columns, values.dtype)
    return TensorDescriptor(values, shape, [stride, 1], box, layout)


def launch_overlapped(
    queries: torch.Tensor,
    view: KVView,
    layer: int,
    tables: torch.Tensor,
    tiles: torch.Tensor,
    *,
    out: torch.Tensor,
    scale: float,
    window: int,
    stages: int,
) -> None:
    """Like `prefill_attention`, which checks the arguments; tiles of BLOCK_TOKENS; `scale` is for
    scores in base 2. Keys and values of `stages` pairs of pages are in flight."""
    assert queries.dtype == view.values.dtype
    assert stages >= 2, "a pair's keys are loaded before the values before them are released"
    heads, dim = queries.shape[1:]
    n_tasks = heads * len(tiles)
    card = card_of(view.values.device)
    cores = 1 if card is None else card.cores  # none: builds ahead of time
    launch(overlapped_kernel, (min(n_tasks, cores),))(
        _rows(queries, [len(queries), heads * dim], queries.stride(0), [_GROUP_TOKENS, dim]),
        out,
        _rows(view.values, [view.values.numel() // dim, dim], dim, [view.page_tokens, dim]),
        tables,
        tiles,
        n_tasks,
        layer,
        scale,
        window,
        tables.stride(0),
        LAYERS=view.layers,
        KV_HEADS=view.kv_heads,
        GROUP=heads // view.kv_heads,
        PAGE=view.page_tokens,
        DIM=dim,
        BLOCK=_GROUP_TOKENS,
        RECORD=TILE_RECORD,
        WINDOWED=window > 0,
        STAGES=stages,
        WARPS=_WARPS,
        REGISTERS=_REGISTERS[0],
        FETCH_REGISTERS=_REGISTERS[1],
        num_warps=_WARPS,
    )
