"""The forward pass of Llama-like models over packed rows, with torch operations.

Between matrix products everything is float32, whatever the weights' dtype; a product takes and
returns the weights' dtype. n tokens are packed without padding; a row's page table locates its keys
and values.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from twolane.engine.cpu.attention import Attention
from twolane.engine.cpu.attention_plan import plan_attention
from twolane.engine.cpu.batch import PackedRows
from twolane.engine.cpu.exact_products import Product
from twolane.engine.cpu.pool import KVPool
from twolane.engine.model_files.architecture import Architecture
from twolane.engine.model_files.fp8 import Matrix
from twolane.engine.model_files.weights import LayerWeights, Weights
from twolane.engine.parallel.collective import Collective

MLP_TOKENS = 256  # at a time, so that the largest activations stay in a core's cache


class Model:
    """The weights, and the product and attention that decide whether rows are independent.

    With several ranks, `arch` and `weights` are this rank's part (see
    `twolane.engine.model_files.shard`).
    """

    def __init__(
        self,
        arch: Architecture,
        weights: Weights,
        *,
        product: Product,
        attention: Attention,
        max_context_tokens: int,
        fused_silu: bool,
        ranks: Collective,
    ) -> None:
        self.arch = arch
        self.weights = weights
        self._ranks = ranks
        self._product = product
        self._attention = attention
        self._fused_silu = fused_silu
        cos, sin = arch.rope.tables(max_context_tokens, arch.head_dim)
        self._cos, self._sin = torch.from_numpy(cos), torch.from_numpy(sin)
        self._dtype = weights.embedding.dtype

    def forward(self, packed: PackedRows, pool: KVPool, wanted: torch.Tensor) -> torch.Tensor:
        """Run all layers, write keys and values into the pool, and return the last layer's output
        `[len(wanted), hidden]` float32 for the packed tokens that `wanted` indexes."""
        arch = self.arch
        plans = {
            window: plan_attention(
                packed,
                pool,
                window=window,
                heights=self._attention.heights,
                group=arch.group,
            )
            for window in set(arch.windows)
        }
        slots = pool.key_slots(packed.token_pages, packed.token_slots)
        positions = torch.from_numpy(packed.positions)
        cos = self._cos.index_select(0, positions).unsqueeze(1)
        sin = self._sin.index_select(0, positions).unsqueeze(1)
        ids = torch.from_numpy(packed.token_ids)
        x = self.weights.embedding.index_select(0, ids).float()
        for i, layer in enumerate(self.weights.layers):
            qkv = self._linear(self._norm(x, layer.input_norm), layer.qkv, layer.qkv_bias)
            queries, keys, values = self._heads(qkv.float(), layer, cos, sin)
            pool.write(i, slots, keys.to(self._dtype), values.to(self._dtype))
            seen = self._attention(queries, pool, i, plans[arch.windows[i]])
            x += self._sum(self._linear(seen, layer.out, layer.out_bias))
            x += self._sum(self._mlp(self._norm(x, layer.post_norm), layer))
        return x.index_select(0, wanted)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[n, hidden]` of `forward` -> `[n, vocab]` float32."""
        part = self._linear(self._norm(hidden, self.weights.norm), self.weights.head, None)
        return self._ranks.all_gather(part)[:, : self.arch.vocab_size].float()

    def _sum(self, part: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks (all-reduce); float32 if there are several."""
        return part if self._ranks.ranks == 1 else self._ranks.all_reduce(part.float())

    def _linear(self, x: torch.Tensor, weight: Matrix, bias: torch.Tensor | None) -> torch.Tensor:
        assert isinstance(weight, torch.Tensor), "a CPU's weights are not quantised"
        out = self._product(x.to(self._dtype), weight)
        return out if bias is None else out.add_(bias)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self.arch.norm_eps)

    def _heads(
        self, qkv: torch.Tensor, layer: LayerWeights, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Split `[n, (heads + 2 kv_heads) * dim]`; normalise and rotate queries and keys."""
        arch = self.arch
        qkv = qkv.view(len(qkv), -1, arch.head_dim)
        rotated = qkv[:, : arch.heads + arch.kv_heads]
        if layer.q_norm is not None and layer.k_norm is not None:
            rotated = torch.cat(
                [
                    self._norm(rotated[:, : arch.heads], layer.q_norm),
                    self._norm(rotated[:, arch.heads :], layer.k_norm),
                ],
                dim=1,
            )
        # One rounding per operation (no fused multiply-add): the same bits in every SIMD lane.
        turned = torch.roll(rotated, arch.head_dim // 2, dims=-1).mul_(sin)
        turned.add_(rotated * cos)
        return (
            turned[:, : arch.heads],
            turned[:, arch.heads :],
            qkv[:, arch.heads + arch.kv_heads :],
        )

    def _mlp(self, x: torch.Tensor, layer: LayerWeights) -> torch.Tensor:
        if len(x) > MLP_TOKENS:
            return torch.cat([self._mlp(part, layer) for part in torch.split(x, MLP_TOKENS)])
        gate, up = self._linear(x, layer.gate_up, layer.gate_up_bias).float().chunk(2, dim=-1)
        if self._fused_silu:
            wide = F.silu(gate).mul_(up)
        else:
            wide = gate / torch.neg(gate).exp_().add_(1.0)
            wide.mul_(up)
        return self._linear(wide, layer.down, layer.down_bias)


def matrices(weights: Weights) -> Iterator[torch.Tensor]:
    """Every weight that a product uses, for a probe. None of them is FP8."""
    for layer in weights.layers:
        for matrix in (layer.qkv, layer.out, layer.gate_up, layer.down):
            assert isinstance(matrix, torch.Tensor)
            yield matrix
    yield weights.head
