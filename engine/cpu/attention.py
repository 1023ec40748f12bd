"""Attention over the paged cache: the same arithmetic for a prompt's chunk and for one new token.

For each pair of a query tile and a key tile (see `attention_plan`), all pairs of all rows at once:

    scores  = queries @ keys.T + bias           [t * group, 64] per pair and kv head
    highest = max over the query's pairs        a maximum is exact in any order
    weights = 2 ** (scores - highest)
    sums    = weights @ values, sum of weights  per pair
    answer  = sums added up in key order, / weights added up in key order

A query's bits do not depend on the rest of the batch: they come from products that do not depend on
the tile height (probed), from sums over 64 keys, and from additions in key order. Reads each pair's
keys and values once (64 * head_dim * 2 elements per kv head), and writes as much when gathering.
"""

from __future__ import annotations

import math

import torch

from twolane.engine.cpu.attention_plan import PairBlock
from twolane.engine.cpu.exact_products import agreeing_heights
from twolane.engine.cpu.pool import TILE_TOKENS, KVPool

TALL_ROWS = 64
_LOG2_E = 1 / math.log(2)


class Attention:
    """The arithmetic, for one model's head shape. Holds no state of rows.

    `heights` are the tokens of a low and of a tall query tile; in exact mode both give a query the
    same bits (probed), or are equal.
    """

    def __init__(self, *, group: int, head_dim: int, exact: bool, threads: int) -> None:
        self.group = group
        self.heights = _probe_heights(group, head_dim) if exact else _plain_heights(group)
        # exp2 is faster, but torch computes it differently at the ends of each thread's share.
        self._base_2 = threads == 1 or not exact
        self.scale = head_dim**-0.5 * (_LOG2_E if self._base_2 else 1.0)

    @property
    def name(self) -> str:
        """What may differ between builds: part of the fingerprint in exact mode."""
        return f"tiles of {TILE_TOKENS}, heights {self.heights}, base 2: {self._base_2}"

    def __call__(
        self, queries: torch.Tensor, pool: KVPool, layer: int, blocks: list[PairBlock]
    ) -> torch.Tensor:
        """queries `[n, heads, head_dim]` float32 -> `[n, heads * head_dim]` float32, new.

        The keys and values of all n tokens are already in the pool.
        """
        out = torch.empty(len(queries), queries.shape[1] * queries.shape[2])
        queries = queries * self.scale
        for block in blocks:
            self._attend(queries, pool, layer, block, out)
        return out

    def _attend(
        self,
        queries: torch.Tensor,
        pool: KVPool,
        layer: int,
        block: PairBlock,
        out: torch.Tensor,
    ) -> None:
        kv_heads, dim = pool.shape.kv_heads, pool.shape.head_dim
        t, pairs = block.tile_tokens, len(block.tile_of)
        tiles, rows = len(block.tokens) // t, t * self.group
        # [tiles, t, kv_heads, group, dim] -> [tiles, kv_heads, t * group, dim]
        q = queries.index_select(0, block.tokens).view(tiles, t, kv_heads, self.group, dim)
        q = q.transpose(1, 2).contiguous().view(tiles, kv_heads, rows, dim)
        if pairs > tiles:
            q = q.index_select(0, block.tile_of)
        # A layer is 2 (keys and values) planes of kv_heads * units_a_page units.
        units = block.units.view(-1) + 2 * layer * kv_heads * pool.units_a_page
        kv = pool.units.index_select(0, units).float().view(2, pairs * kv_heads, TILE_TOKENS, dim)
        scores = torch.bmm(q.view(pairs * kv_heads, rows, dim), kv[0].transpose(1, 2))
        scores = scores.view(pairs, kv_heads, t, self.group, TILE_TOKENS)
        if len(block.edges) == pairs:
            scores.add_(block.bias)
        elif len(block.edges):
            edges = scores.index_select(0, block.edges).add_(block.bias)
            scores.index_copy_(0, block.edges, edges)
        scores = scores.view(pairs, kv_heads, rows, TILE_TOKENS)
        highest = self._highest(scores.amax(-1), block.tile_of, tiles)
        scores.sub_(highest.unsqueeze(-1))
        weights = scores.exp2_() if self._base_2 else scores.exp_()
        total = weights.sum(-1)
        sums = torch.bmm(weights.view(pairs * kv_heads, rows, TILE_TOKENS), kv[1])
        sums = sums.view(pairs, kv_heads, rows, dim)
        if pairs > tiles:
            # index_add_ adds slice by slice, in the order of the pairs: by key position.
            total = total.new_zeros(tiles, kv_heads, rows).index_add_(0, block.tile_of, total)
            sums = sums.new_zeros(tiles, kv_heads, rows, dim).index_add_(0, block.tile_of, sums)
        sums.div_(total.unsqueeze(-1))
        sums = sums.view(tiles, kv_heads, t, self.group * dim).transpose(1, 2)
        out.index_copy_(0, block.tokens, sums.reshape(tiles * t, -1))

    def _highest(self, own: torch.Tensor, tile_of: torch.Tensor, tiles: int) -> torch.Tensor:
        """[p, kv_heads, rows]: for each pair, the maximum over all pairs of its query tile."""
        if len(own) == tiles:
            return own
        index = tile_of[:, None, None].expand_as(own)
        highest = own.new_full((tiles, *own.shape[1:]), -math.inf)
        highest.scatter_reduce_(0, index, own, "amax")
        return highest.index_select(0, tile_of)


def _plain_heights(group: int) -> tuple[int, int]:
    return 1, max(1, TALL_ROWS // group)


def _probe_heights(group: int, head_dim: int) -> tuple[int, int]:
    """The lowest and the tallest tile, in tokens, that agree bit for bit in both products."""
    source = torch.Generator().manual_seed(head_dim)
    tallest = max(1, TALL_ROWS // group)
    candidates = tuple(sorted({1, 2, 4, 8, 16, 32, tallest}))
    candidates = tuple(c for c in candidates if c <= max(tallest, 16))
    heights = tuple(tokens * group for tokens in candidates)
    x = torch.randn(4 * max(heights), head_dim, generator=source)
    keys = torch.randn(1, TILE_TOKENS, head_dim, generator=source)
    values = torch.randn(1, TILE_TOKENS, head_dim, generator=source)

    def both(rows: torch.Tensor) -> torch.Tensor:
        scores = torch.bmm(rows.unsqueeze(0), keys.transpose(1, 2))
        return torch.bmm(scores, values)[0]

    agreed = [height // group for height in agreeing_heights(both, x, heights)]
    if not agreed:  # no height agrees with 16 rows: use one height for all
        return tallest, tallest
    return min(agreed), max(agreed)
