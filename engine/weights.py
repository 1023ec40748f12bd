"""A model's parameters, fused as the forward pass wants them, and where they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.architecture import Architecture
from engine.checkpoint import Checkpoint
from engine.fp8 import Fp8Rows, Matrix

Progress = Callable[[int, int], None]  # (tensors read, tensors in all)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Matrices are `[out, in]`, as checkpoints have them; absent parts are None.

    Norms are float32, all else of the model's dtype, but for matrices in FP8.
    """

    input_norm: torch.Tensor
    qkv: Matrix  # [(heads + 2 kv_heads) * head_dim, hidden]: queries, keys, values
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: Matrix  # [hidden, heads * head_dim]
    out_bias: torch.Tensor | None
    post_norm: torch.Tensor
    gate_up: Matrix  # [2 * intermediate, hidden]: gate, up
    gate_up_bias: torch.Tensor | None
    down: Matrix  # [hidden, intermediate]
    down_bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Weights:
    """All parameters. With tied embeddings, `head` is the embedding's own memory."""

    embedding: torch.Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor  # [vocab, hidden]


@dataclass(frozen=True, slots=True)
class _Part:
    """Where one tensor of a checkpoint goes: a slice of a fused parameter."""

    name: str
    target: Matrix


class _Builder:
    """Allocates parameters and remembers which tensor of the checkpoint fills which slice."""

    def __init__(self, dtype: torch.dtype, *, fp8: bool) -> None:
        self.dtype = dtype
        self.fp8 = fp8
        self.parts: list[_Part] = []

    def param(
        self, names: list[str], sizes: list[int], *tail: int, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        whole = torch.empty(sum(sizes), *tail, dtype=dtype or self.dtype)
        slices = torch.split(whole, sizes)
        self.parts += [_Part(name, part) for name, part in zip(names, slices, strict=True)]
        return whole

    def layer(self, arch: Architecture, i: int) -> LayerWeights:
        attn, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        hidden, wide = arch.hidden_size, arch.intermediate_size
        q_size, kv_size = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
        qkv, qkv_sizes = [f"{attn}.{x}_proj" for x in "qkv"], [q_size, kv_size, kv_size]
        gate_up, gate_up_sizes = [f"{mlp}.{x}_proj" for x in ("gate", "up")], [wide, wide]

        def matrix(names: list[str], sizes: list[int], width: int) -> Matrix:
            names = [f"{name}.weight" for name in names]
            if not self.fp8:
                return self.param(names, sizes, width)
            whole = Fp8Rows.empty(sum(sizes), width)
            self.parts += map(_Part, names, whole.split(sizes))
            return whole

        def bias(names: list[str], sizes: list[int], has: bool) -> torch.Tensor | None:
            return self.param([f"{name}.bias" for name in names], sizes) if has else None

        def norm(name: str, size: int) -> torch.Tensor:
            return self.param([f"{name}.weight"], [size], dtype=torch.float32)

        return LayerWeights(
            input_norm=norm(f"model.layers.{i}.input_layernorm", hidden),
            qkv=matrix(qkv, qkv_sizes, hidden),
            qkv_bias=bias(qkv, qkv_sizes, arch.qkv_bias),
            q_norm=norm(f"{attn}.q_norm", arch.head_dim) if arch.qk_norm else None,
            k_norm=norm(f"{attn}.k_norm", arch.head_dim) if arch.qk_norm else None,
            out=matrix([f"{attn}.o_proj"], [hidden], q_size),
            out_bias=bias([f"{attn}.o_proj"], [hidden], arch.out_bias),
            post_norm=norm(f"model.layers.{i}.post_attention_layernorm", hidden),
            gate_up=matrix(gate_up, gate_up_sizes, hidden),
            gate_up_bias=bias(gate_up, gate_up_sizes, arch.mlp_bias),
            down=matrix([f"{mlp}.down_proj"], [hidden], wide),
            down_bias=bias([f"{mlp}.down_proj"], [hidden], arch.mlp_bias),
        )


def _allocate(arch: Architecture, dtype: torch.dtype, *, fp8: bool) -> tuple[Weights, list[_Part]]:
    builder = _Builder(dtype, fp8=fp8)
    embedding = builder.param(["model.embed_tokens.weight"], [arch.vocab_size], arch.hidden_size)
    layers = tuple(builder.layer(arch, i) for i in range(arch.layers))
    norm = builder.param(["model.norm.weight"], [arch.hidden_size], dtype=torch.float32)
    head = embedding
    if not arch.tied_embeddings:
        head = builder.param(["lm_head.weight"], [arch.vocab_size], arch.hidden_size)
    return Weights(embedding, layers, norm, head), builder.parts


def load_weights(
    arch: Architecture,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    progress: Progress | None = None,
    *,
    fp8: bool = False,
) -> Weights:
    """Read every parameter, cast to dtype, to torch's default device; with `fp8`, the layers'
    matrices as FP8, rounded to it where they are not stored so. `progress` is called after each.
    Raises CheckpointError for a missing, extra or misshapen tensor."""
    weights, parts = _allocate(arch, dtype, fp8=fp8)
    for i, part in enumerate(parts):
        checkpoint.copy_into(part.name, part.target)
        if progress is not None:
            progress(i + 1, len(parts))
    used = {part.name for part in parts} | ({"lm_head.weight"} if arch.tied_embeddings else set())
    checkpoint.refuse_extras(used)
    return weights


def random_weights(
    arch: Architecture, dtype: torch.dtype, seed: int, *, fp8: bool = False
) -> Weights:
    """Parameters drawn from a seed on torch's default device: the same on every worker with that
    kind of device.

    Norms lie around 1, biases and matrices around 0, so that each of them matters and activations
    keep their size over many layers.
    """
    weights, parts = _allocate(arch, dtype, fp8=fp8)
    device = weights.embedding.device
    source = torch.Generator(device).manual_seed(seed)
    for part in parts:
        drawn = torch.randn(part.target.shape, generator=source, device=device)
        if part.name.endswith("norm.weight"):
            drawn = 1 + 0.1 * drawn
        elif part.target.dim() == 2 and "embed" not in part.name:
            drawn *= part.target.shape[1] ** -0.5
        else:
            drawn *= 0.1
        part.target.copy_(drawn)
    return weights
