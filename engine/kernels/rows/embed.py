"""The embedding of a step's tokens: known ones, and those that the previous step sampled.

Bytes per token: one row of the embedding read, one written. The resolved ids are written back,
since later parts of the step need a row's newest token.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import torch
import triton
import triton.language as tl

from twolane.engine.kernels.launch import launch
from twolane.engine.kernels.pdl import ready

BLOCK = 1024


@triton.jit
def _embed_kernel(
    ids, follow, latest, embedding, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    ready(PDL)
    token = tl.program_id(0).to(tl.int64)
    source = tl.load(follow + token)
    known = tl.load(ids + token)
    sampled = tl.load(latest + tl.maximum(source, 0))
    # A failed row's sample is -1: its next step computes garbage that is never read.
    row = tl.where(source >= 0, tl.maximum(sampled, 0), known)
    tl.store(ids + token, row)
    for start in range(0, WIDTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        keep = column < WIDTH
        held = tl.load(embedding + row.to(tl.int64) * WIDTH + column, mask=keep)
        tl.store(out + token * WIDTH + column, held, mask=keep)


def embed(
    ids: torch.Tensor,
    follow: torch.Tensor,
    latest: torch.Tensor,
    embedding: torch.Tensor,
    *,
    out: torch.Tensor,
    pdl: int = 0,
) -> None:
    """ids, follow [n] int32 -> out `[n, width]`: row i is `embedding[latest[follow[i]]]`, or
    `embedding[ids[i]]` if follow[i] is -1. `ids` is overwritten with the resolved ids."""
    n, width = out.shape
    assert ids.dtype == follow.dtype == latest.dtype == torch.int32
    assert embedding.is_contiguous()
    assert out.is_contiguous()
    assert embedding.shape[1] == width
    launch(_embed_kernel, (n,))(
        ids, follow, latest, embedding, out,
        WIDTH=width, BLOCK=BLOCK, PDL=pdl, num_warps=4, launch_pdl=pdl,
    )  # fmt: skip


def reference_embed(
    ids: torch.Tensor, follow: torch.Tensor, latest: torch.Tensor, embedding: torch.Tensor
) -> torch.Tensor:
    sampled = latest[follow.clamp(min=0).long()].clamp(min=0)
    return embedding[torch.where(follow >= 0, sampled, ids).long()]
