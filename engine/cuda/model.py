"""The forward pass of Llama-like models on a GPU: from token ids to logits, in our own kernels.

A layer, over n packed tokens of which the first d are decode rows:

    residual -> norm -> qkv product -> bias, norms, rope, write to pages -> attention -> product
        `-----------------------------------------------------------------------------> +
             -> norm -> gate, up product with silu * -> down product -> + (in the next norm)

Of few rows, products add to the residual and norm what they read (`kernels.products.unnormed`): the
norms are no launches then. The residual stream has the weights' dtype; between its roundings
everything is float32. Nothing here waits for the device, so a CUDA graph can contain all of it.
"""

from __future__ import annotations

import torch

from twolane.engine.cuda.all_reduce import AllReduce
from twolane.engine.cuda.chunks import ChunkAttention, Scratch
from twolane.engine.cuda.inputs import DeviceInputs
from twolane.engine.cuda.plans import DecodePlans
from twolane.engine.cuda.products import Products, Rows
from twolane.engine.kernels.attention.decode_attention import decode_attention
from twolane.engine.kernels.attention.decode_plan import DecodePlan, plan_decode
from twolane.engine.kernels.launch import card_of
from twolane.engine.kernels.pages.kv_view import KVView
from twolane.engine.kernels.pages.rope_write import rope_write
from twolane.engine.kernels.pdl import APART
from twolane.engine.kernels.products.unnormed import Residual
from twolane.engine.kernels.rows.embed import embed
from twolane.engine.kernels.rows.norm import rms_norm
from twolane.engine.model_files.architecture import Architecture
from twolane.engine.model_files.fp8 import Fp8Rows, Matrix, Unscaled
from twolane.engine.model_files.weights import LayerWeights, Weights


class CudaModel:
    """Weights and pool of one device; `latest` [any] int32 holds the last step's samples.

    With `all_reduce`, this is one rank of several: `arch` and `weights` are its part.
    """

    def __init__(
        self,
        arch: Architecture,
        weights: Weights,
        view: KVView,
        *,
        products: Products,
        plans: DecodePlans,
        latest: torch.Tensor,
        max_context_tokens: int,
        exact: bool,
        overlap: int,
        all_reduce: AllReduce | None = None,
    ) -> None:
        """`overlap`: how the launches of a decode step overlap (`twolane.engine.kernels.pdl`)."""
        self.arch = arch
        self.weights = weights
        self._all_reduce = all_reduce
        self.view = view
        self.windows = tuple(sorted(set(arch.windows)))
        self._n_few = n_few_layers(arch.windows)
        self.chunks = ChunkAttention(view, weights.embedding.dtype, exact=exact)
        self._products = products
        self._plans = plans
        self._latest = latest
        on_card = card_of(view.values.device) is not None
        self._overlap = overlap if on_card else APART
        self._cos, self._sin = _rope_tables(arch, max_context_tokens, view.values.device)

    @property
    def may_graph_prompts(self) -> bool:
        """Not if ranks sum many rows outside of graphs, or if scratch depends on the rows'
        pages."""
        return self._all_reduce is None and not self.chunks.dequantises

    def forward(
        self, inputs: DeviceInputs, n_decode: int, *, few_layers: bool = False
    ) -> torch.Tensor:
        """Write keys and values of all tokens into the pool; return the logits `[s, vocab]` of the
        tokens in `inputs.wanted` (all tokens if there are only decode rows).

        With `few_layers`, all kernels are launched, but for some layers only; the logits are
        meaningless.
        """
        arch, n = self.arch, inputs.shape.tokens
        pdl = self._overlap if n == n_decode else APART
        plans = self._plan(inputs, n_decode)
        scratch = self.chunks.scratch(inputs, n_decode)
        weights = self.weights
        residual = weights.embedding.new_empty(n, arch.hidden_size)
        embed(inputs.ids, inputs.follow, self._latest, weights.embedding, out=residual, pdl=pdl)
        fp8 = isinstance(weights.layers[0].qkv, Fp8Rows)
        normed = self._products.rows_like(residual, arch.hidden_size, fp8=fp8)
        layers = weights.layers[: self._n_few if few_layers else None]
        rms_norm(residual, layers[0].input_norm, out=normed, epsilon=arch.norm_eps, pdl=pdl)
        rows: Rows = normed
        for i, layer in enumerate(layers):
            seen = self._attention(i, layer, rows, inputs, n_decode, plans, scratch, pdl)
            norm = layer.post_norm
            rows = self._add(seen, layer.out, layer.out_bias, residual, norm, normed, pdl)
            thin = self._products.gated(rows, layer.gate_up, layer.gate_up_bias, pdl=pdl)
            if i + 1 < len(layers):
                norm = layers[i + 1].input_norm
                rows = self._add(thin, layer.down, layer.down_bias, residual, norm, normed, pdl)
        out = self._product_to_add(thin, layers[-1].down, layers[-1].down_bias, pdl)
        if inputs.shape.sampled == 0:
            return residual.new_empty(0, arch.vocab_size)
        if n_decode < n:  # of a chunk, at most the last token is wanted
            out = out.index_select(0, inputs.wanted)
            residual = residual.index_select(0, inputs.wanted)
        normed = self._products.plain_rows_like(residual, arch.hidden_size)
        self._add_norm(out, residual, weights.norm, normed, pdl)
        logits = self._products(normed, weights.head, None, pdl=pdl)
        return (
            logits if self._all_reduce is None else self._all_reduce.logits(logits, arch.vocab_size)
        )

    def _plan(self, inputs: DeviceInputs, n_decode: int) -> dict[int, DecodePlan]:
        if not n_decode:
            return {}
        plans = {window: self._plans.plan(n_decode, window) for window in self.windows}
        for window, plan in plans.items():
            plan_decode(
                plan,
                inputs.lengths[:n_decode],
                inputs.tables,
                page_tokens=self.view.page_tokens,
                window=window,
            )
        return plans

    def _add(
        self,
        x: Matrix,
        weight: Matrix,
        bias: torch.Tensor | None,
        residual: torch.Tensor,
        norm: torch.Tensor,
        normed: Matrix,
        pdl: int,
    ) -> Rows:
        """residual += a product; the norm of that, as products read it, perhaps in `normed`."""
        if self._all_reduce is None:
            to = Residual(residual, norm, self.arch.norm_eps)
            rows = self._products.add(x, weight, bias, to, pdl=pdl)
            if rows is not None:
                return rows
        self._add_norm(self._product_to_add(x, weight, bias, pdl), residual, norm, normed, pdl)
        return normed

    def _product_to_add(
        self, x: Matrix, weight: Matrix, bias: torch.Tensor | None, pdl: int
    ) -> torch.Tensor | Unscaled:
        """A product that `_add_norm` takes. Ranks sum what is scaled."""
        if self._all_reduce is not None:
            return self._products(x, weight, bias, pdl=pdl)
        return self._products.for_norm(x, weight, bias, pdl=pdl)

    def _add_norm(
        self,
        out: torch.Tensor | Unscaled,
        residual: torch.Tensor,
        weight: torch.Tensor,
        normed: Matrix,
        pdl: int,
    ) -> None:
        """residual += out, summed over all ranks; normed = its norm."""
        eps = self.arch.norm_eps
        if self._all_reduce is not None:
            assert isinstance(out, torch.Tensor)
            self._all_reduce.add_norm(out, residual, weight, out=normed, epsilon=eps, pdl=pdl)
        else:
            rms_norm(out, weight, out=normed, epsilon=eps, residual=residual, pdl=pdl)

    def _attention(
        self,
        i: int,
        layer: LayerWeights,
        rows: Rows,
        inputs: DeviceInputs,
        n_decode: int,
        plans: dict[int, DecodePlan],
        scratch: Scratch | None,
        pdl: int,
    ) -> torch.Tensor:
        """`[n, heads * head_dim]`: the attention output of each token in layer i."""
        arch, view, window = self.arch, self.view, self.arch.windows[i]
        n, scale = len(rows), self.arch.head_dim**-0.5
        qkv = self._products(rows, layer.qkv, None, pdl=pdl)
        queries = qkv.new_empty(n, arch.heads, arch.head_dim)
        rope_write(
            qkv, view, i, inputs.positions, inputs.slots, self._cos, self._sin,
            queries=queries, bias=layer.qkv_bias, query_norm=layer.q_norm, key_norm=layer.k_norm,
            epsilon=arch.norm_eps, pdl=pdl,
        )  # fmt: skip
        seen = self._products.plain_rows_like(qkv, arch.heads * arch.head_dim).view(queries.shape)
        if n_decode:
            decode_attention(
                queries[:n_decode], view, i, inputs.tables, plans[window],
                out=seen[:n_decode], scale=scale, window=window,
                programs=self._plans.programs(n_decode), pdl=pdl,
            )  # fmt: skip
        if n_decode < n:
            self.chunks(
                queries[n_decode:], i, inputs, n_decode,
                inputs.tiles[self.windows.index(window)], scratch,
                out=seen[n_decode:], scale=scale, window=window,
            )  # fmt: skip
        return seen.view(n, -1)


def n_few_layers(windows: tuple[int, ...]) -> int:
    """The first layers that include every kind: each window, and one that adds a previous
    output."""
    return max(2, 1 + max(windows.index(window) for window in windows))


def _rope_tables(
    arch: Architecture, positions: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """As from `Rope.tables`, but computed on the device: 131,072 positions take a second on the
    host."""
    if device.type == "meta":
        shape = (positions, arch.head_dim)
        return torch.empty(shape, device=device), torch.empty(shape, device=device)
    angles = torch.from_numpy(arch.rope.angles(positions, arch.head_dim)).to(device).double()
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], 1).float(), torch.cat([-sin, sin], 1).float()
