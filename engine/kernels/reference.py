"""Reference attention over pages: one row at a time, in float64, in plain torch."""

import torch

from twolane.engine.kernels.pages.kv_view import KVView


def gather(view: KVView, layer: int, pages: list[int], n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A row's first n keys and values, each `[kv_heads, n, head_dim]` float64."""
    parts = [part[pages, layer].double() for part in view.parts()]  # [pages, kv_heads, tokens, dim]
    if view.has_scales:
        scales = view.plane_scales()[pages, layer].double()[..., None]
        parts = [part * scales[:, i] for i, part in enumerate(parts)]
    held = [part.transpose(0, 1).flatten(1, 2)[:, :n] for part in parts]
    return held[0], held[1]


def reference_attention(
    queries: torch.Tensor,
    view: KVView,
    layer: int,
    pages: list[int],
    *,
    start: int,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """queries `[n, heads, head_dim]` of one row, at positions from `start` on -> the same shape,
    float64. Position p sees the keys 0 .. p, or the last `window` of them."""
    n, heads, _ = queries.shape
    keys, values = gather(view, layer, pages, start + n)
    group = heads // view.kv_heads
    q = queries.double().transpose(0, 1).reshape(view.kv_heads, group, n, -1)
    scores = torch.einsum("kgqd,ksd->kgqs", q, keys) * scale
    position = torch.arange(start, start + n, device=queries.device)[:, None]
    key = torch.arange(start + n, device=queries.device)[None, :]
    hidden = key > position
    if window:
        hidden |= key <= position - window
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    answer = torch.einsum("kgqs,ksd->kgqd", weights, values)
    return answer.flatten(0, 1).transpose(0, 1)
