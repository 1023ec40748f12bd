"""A model's parameters, fused for the forward pass, and how they are loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from twolane.engine.model_files.architecture import Architecture
from twolane.engine.model_files.checkpoint import Checkpoint
from twolane.engine.model_files.fp8 import Fp8Rows, Matrix
from twolane.engine.model_files.shard import WHOLE, Cut, Shard
from twolane.engine.progress import Loaded, Progress


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Matrices are `[out, in]`, as in checkpoints; absent parts are None.

    Norms are float32, everything else has the model's dtype, except FP8 matrices. With several
    ranks, sizes are those of a rank's part (see `twolane.engine.model_files.shard`).
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
    """All parameters. With tied embeddings, `head` shares the embedding's memory if possible."""

    embedding: torch.Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor  # [vocab, hidden], or this rank's rows


@dataclass(frozen=True, slots=True)
class _Part:
    """The target of one checkpoint tensor, or of a cut of it: a slice of a fused parameter."""

    name: str
    target: Matrix
    cut: Cut | None = None


class _Builder:
    """Allocates parameters and records which checkpoint tensor fills which slice."""

    def __init__(self, dtype: torch.dtype, shard: Shard, *, fp8: bool) -> None:
        self.dtype = dtype
        self.shard = shard
        self.fp8 = fp8
        self.parts: list[_Part] = []

    def param(
        self, names: list[str], sizes: list[int], *tail: int, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Concatenates whole tensors."""
        whole = torch.empty(sum(sizes), *tail, dtype=dtype or self.dtype)
        slices = torch.split(whole, sizes)
        self.parts += [_Part(name, part) for name, part in zip(names, slices, strict=True)]
        return whole

    def rows(self, names: list[str], cuts: list[Cut]) -> torch.Tensor:
        """Concatenates a cut of each vector."""
        sizes = [cut.size for cut in cuts]
        whole = torch.empty(sum(sizes), dtype=self.dtype)
        self.parts += map(_Part, names, torch.split(whole, sizes), cuts)
        return whole

    def matrix(self, names: list[str], cuts: list[Cut], width: int) -> Matrix:
        """Concatenates some rows of each matrix `[any, width]`."""
        sizes = [cut.size for cut in cuts]
        whole = self._empty(sum(sizes), width)
        self.parts += map(_Part, names, whole.split(sizes), cuts)
        return whole

    def columns(self, name: str, rows: int, width: int) -> Matrix:
        """This rank's columns of one matrix `[rows, width]`."""
        cut = self.shard.part(width, dim=1)
        whole = self._empty(rows, cut.size)
        self.parts.append(_Part(name, whole, cut))
        return whole

    def _empty(self, rows: int, width: int) -> Matrix:
        if self.fp8:
            return Fp8Rows.empty(rows, width)
        return torch.empty(rows, width, dtype=self.dtype)

    def added_bias(self, name: str, size: int) -> torch.Tensor | None:
        """The bias of an all-reduced output: only rank 0 uses it (others read and drop it)."""
        whole = self.param([f"{name}.bias"], [size])
        return whole if self.shard.rank == 0 else None

    def layer(self, arch: Architecture, i: int) -> LayerWeights:
        attn, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        hidden, wide, q_size = arch.hidden_size, arch.intermediate_size, arch.heads * arch.head_dim
        kv_cut, wide_cut = self.shard.kv_part(arch), self.shard.part(wide)
        qkv, qkv_cuts = (
            [f"{attn}.{x}_proj" for x in "qkv"], [self.shard.part(q_size), kv_cut, kv_cut]
        )  # fmt: skip
        gate_up, gate_up_cuts = [f"{mlp}.{x}_proj" for x in ("gate", "up")], [wide_cut, wide_cut]

        def matrix(names: list[str], cuts: list[Cut]) -> Matrix:
            return self.matrix([f"{name}.weight" for name in names], cuts, hidden)

        def bias(names: list[str], cuts: list[Cut], has: bool) -> torch.Tensor | None:
            return self.rows([f"{name}.bias" for name in names], cuts) if has else None

        def norm(name: str, size: int) -> torch.Tensor:
            return self.param([f"{name}.weight"], [size], dtype=torch.float32)

        return LayerWeights(
            input_norm=norm(f"model.layers.{i}.input_layernorm", hidden),
            qkv=matrix(qkv, qkv_cuts),
            qkv_bias=bias(qkv, qkv_cuts, arch.qkv_bias),
            q_norm=norm(f"{attn}.q_norm", arch.head_dim) if arch.qk_norm else None,
            k_norm=norm(f"{attn}.k_norm", arch.head_dim) if arch.qk_norm else None,
            out=self.columns(f"{attn}.o_proj.weight", hidden, q_size),
            out_bias=self.added_bias(f"{attn}.o_proj", hidden) if arch.out_bias else None,
            post_norm=norm(f"model.layers.{i}.post_attention_layernorm", hidden),
            gate_up=matrix(gate_up, gate_up_cuts),
            gate_up_bias=bias(gate_up, gate_up_cuts, arch.mlp_bias),
            down=self.columns(f"{mlp}.down_proj.weight", hidden, wide),
            down_bias=self.added_bias(f"{mlp}.down_proj", hidden) if arch.mlp_bias else None,
        )

    def head(self, arch: Architecture, embedding: torch.Tensor) -> torch.Tensor:
        """This rank's rows of the head, zeros past the end of the vocabulary."""
        cut, rows = self.shard.vocab_part(arch.vocab_size), self.shard.vocab_rows(arch.vocab_size)
        if arch.tied_embeddings and cut.size == rows:
            return cut.of(embedding)
        name = EMBEDDING if arch.tied_embeddings else HEAD
        whole = torch.zeros(rows, arch.hidden_size, dtype=self.dtype)
        self.parts.append(_Part(name, whole[: cut.size], cut))
        return whole


EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def allocate_weights(
    arch: Architecture, dtype: torch.dtype, shard: Shard, *, fp8: bool
) -> tuple[Weights, list[_Part]]:
    shard.check(arch)
    builder = _Builder(dtype, shard, fp8=fp8)
    embedding = builder.param([EMBEDDING], [arch.vocab_size], arch.hidden_size)
    layers = tuple(builder.layer(arch, i) for i in range(arch.layers))
    norm = builder.param(["model.norm.weight"], [arch.hidden_size], dtype=torch.float32)
    return Weights(embedding, layers, norm, builder.head(arch, embedding)), builder.parts


def _in_turn(parts: Sequence[_Part], progress: Progress | None) -> Iterator[_Part]:
    """Yields all parts. `progress` is called first, and each time the caller has filled one."""
    n_bytes, of_bytes = 0, sum(part.target.nbytes for part in parts)
    for i, part in enumerate(parts):
        if progress is not None:
            progress(Loaded(i, len(parts), n_bytes, of_bytes))
        yield part
        n_bytes += part.target.nbytes
    if progress is not None:
        progress(Loaded(len(parts), len(parts), n_bytes, of_bytes))


def load_weights(
    arch: Architecture,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    progress: Progress | None = None,
    *,
    shard: Shard = WHOLE,
    fp8: bool = False,
) -> Weights:
    """Read a rank's parameters to torch's default device, cast to dtype: only its part of every
    tensor. With `fp8`, the layers' matrices are FP8, quantised unless stored as such. `progress` is
    called first, and after each tensor. Raises CheckpointError for a missing, extra or misshapen
    tensor, EngineConfigError for a model that does not divide."""
    checkpoint.refuse_quantised()
    weights, parts = allocate_weights(arch, dtype, shard, fp8=fp8)
    for part in _in_turn(parts, progress):
        checkpoint.copy_into(part.name, part.target, part.cut)
    if arch.tied_embeddings:
        checkpoint.refuse_unequal(HEAD, EMBEDDING, shard.vocab_part(arch.vocab_size))
    used = {part.name for part in parts} | ({HEAD} if arch.tied_embeddings else set())
    checkpoint.refuse_extras(used)
    return weights


def random_weights(
    arch: Architecture,
    dtype: torch.dtype,
    seed: int,
    progress: Progress | None = None,
    *,
    shard: Shard = WHOLE,
    fp8: bool = False,
) -> Weights:
    """Parameters drawn from a seed on torch's default device: the same on every worker with that
    kind of device; each rank gets its part of them.

    Norms are around 1, biases and matrices around 0, so that each of them matters and activations
    keep their scale over many layers.
    """
    weights, parts = allocate_weights(arch, dtype, shard, fp8=fp8)
    device = weights.embedding.device
    source = torch.Generator(device).manual_seed(seed)
    for part in _in_turn(parts, progress):
        cut, shape = part.cut, tuple(part.target.shape)
        if part.name == EMBEDDING and cut is not None:  # the head, with tied embeddings
            part.target.copy_(cut.of(weights.embedding))
            continue
        drawn = torch.randn(
            cut.whole_shape(shape) if cut else shape, generator=source, device=device
        )
        if part.name.endswith("norm.weight"):
            drawn = 1 + 0.1 * drawn
        elif drawn.dim() == 2 and "embed" not in part.name:
            drawn *= drawn.shape[1] ** -0.5
        else:
            drawn *= 0.1
        part.target.copy_(cut.of(drawn) if cut else drawn)
    return weights
