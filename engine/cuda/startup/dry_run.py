"""Finds every kernel launch that an engine's steps may need, before there is anything to compute.

    blueprint, card -> a model on `meta`, of few layers -> passes of every kind -> `take(launch)`
                                                                                   `take_call(call)`

It uses no memory and no time of the device, and does not even need one.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from twolane.engine.cuda.all_reduce import AllReduce
from twolane.engine.cuda.inputs import DeviceInputs, InputShape
from twolane.engine.cuda.model import n_few_layers
from twolane.engine.cuda.packing import prompt_shape
from twolane.engine.cuda.plans import STEP_ROWS
from twolane.engine.cuda.products import MANY_ROWS
from twolane.engine.cuda.sampler import DeviceSampler, Fresh
from twolane.engine.cuda.startup.blueprint import Blueprint
from twolane.engine.cuda.startup.step_shapes import PassKind, StepShapes, mixed_kinds
from twolane.engine.kernels.launch import Card, Take, TakeCall, dry_running
from twolane.engine.kernels.pages.page_checksum import checksum_pages
from twolane.engine.kernels.pages.page_copy import copy_pages
from twolane.engine.kernels.products.gated_many_rows_plan import TILE_ROWS, plan_gated_many_rows
from twolane.engine.kernels.rows.all_reduce import MAX_ROWS, MAX_WIDTH, PeerBuffers
from twolane.engine.kernels.rows.sample import sample
from twolane.engine.model_files.weights import allocate_weights

META = torch.device("meta")
_ADDRESS = 1 << 40  # aligned, and too large for 32 bits, as those of a card are


def dry_run_launches(
    blueprint: Blueprint,
    expected: StepShapes,
    card: Card,
    take: Take,
    take_call: TakeCall | None = None,
) -> None:
    """Call `take` for every launch, in every variant, that steps within `expected` may need, and
    `take_call` for every product of a library; for some of them several times."""
    with dry_running(card, take, take_call), torch.inference_mode():
        stage = Stage(blueprint)
        for kind in mixed_kinds(expected, many_rows_from=many_rows_from(blueprint, expected, card)):
            stage.mixed(kind)
        for bucket in expected.prompt_buckets(exact=blueprint.config.exact):
            stage.prompts(bucket)
        for bucket in expected.buckets:
            stage.decode(bucket)
        stage.refine()
        stage.move_pages()


def many_rows_from(blueprint: Blueprint, expected: StepShapes, card: Card) -> int | None:
    """The fewest tokens for which the many-rows gated kernel fills the card; None if there are
    none."""
    units, cores = blueprint.local.intermediate_size, card.cores
    sizes = range(MANY_ROWS, expected.tokens + 1, TILE_ROWS)
    return next(
        (n for n in sizes if plan_gated_many_rows(n, units, cores=cores).fills(cores)), None
    )


class Stage:
    """A model on `meta` with one layer of each kind, created and used within `dry_running`."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._blueprint = blueprint
        self._latest = torch.zeros(2, STEP_ROWS, dtype=torch.int32, device=META)
        self._fresh = Fresh(self._latest[0], self._latest[1].view(torch.float32))
        all_reduce = _dry_run_all_reduce(blueprint)
        arch = blueprint.arch
        self._sampler = DeviceSampler(
            arch.vocab_size,
            arch.eos_token_ids,
            exact=blueprint.config.exact,
            agreed=None if all_reduce is None else all_reduce.agreed,
        )
        with META:
            weights, _ = allocate_weights(arch, blueprint.dtype, blueprint.shard, fp8=blueprint.fp8)
        weights = replace(weights, layers=weights.layers[: n_few_layers(arch.windows)])
        self._model = blueprint.model(
            weights,
            torch.empty(blueprint.pool.page_bytes, dtype=torch.uint8, device=META),
            products=blueprint.products(weights),
            latest=self._latest[0],
            all_reduce=all_reduce,
        )

    @property
    def windows(self) -> tuple[int, ...]:
        return self._model.windows

    @property
    def block_tokens(self) -> int:
        """Tokens per tile of a chunk."""
        return self._model.chunks.config.block_tokens

    @property
    def may_graph_prompts(self) -> bool:
        return self._model.may_graph_prompts

    def decode(self, rows: int) -> None:
        """A pass of decode rows only, as in a graph."""
        self.run(InputShape(rows, rows, rows, self._blueprint.table_pages), rows)

    def prompts(self, tokens: int) -> None:
        """A pass of prompts only, as in a graph; nothing if they run without graphs."""
        if not self.may_graph_prompts:
            return
        shape = prompt_shape(
            tokens,
            n_windows=len(self.windows),
            block_tokens=self.block_tokens,
            table_pages=self._blueprint.table_pages,
        )
        self.run(shape, 0)

    def mixed(self, kind: PassKind) -> None:
        shape = InputShape(
            kind.tokens,
            kind.decode + 1,
            kind.sampled,
            self._blueprint.table_pages,
            tiles=(1,) * len(self._model.windows),
            chunk_pages=-(-kind.chunk // self._blueprint.page_tokens),
        )
        self.run(shape, kind.decode)

    def run(self, shape: InputShape, n_decode: int) -> None:
        """A pass with inputs of that shape: its forward, and the sampler's kernel."""
        inputs = DeviceInputs(shape, META)
        logits = self._model.forward(inputs, n_decode)
        if len(logits):
            self._sampler.draw(logits, inputs, self._fresh)

    def refine(self) -> None:
        """What rows with more than a temperature also need; everything else is the library's."""
        inputs = DeviceInputs(InputShape(1, 1, 1, self._blueprint.table_pages), META)
        logits = torch.empty(1, self._blueprint.arch.vocab_size, device=META)
        sample(
            logits, inputs.temperatures, inputs.seeds, inputs.samples, inputs.index,
            tokens=self._fresh.tokens[:1], logprobs=self._fresh.logprobs[:1],
        )  # fmt: skip

    def move_pages(self) -> None:
        """What a worker launches on pages of this pool, between its steps."""
        pages = torch.empty(1, dtype=torch.int32, device=META)
        sums = torch.empty(1, dtype=torch.int64, device=META)
        page_bytes = self._blueprint.pool.page_bytes
        checksum_pages(_ADDRESS, pages, page_bytes=page_bytes, out=sums)
        copy_pages(_ADDRESS, _ADDRESS, pages, pages, page_bytes=page_bytes)


def _dry_run_all_reduce(blueprint: Blueprint) -> AllReduce | None:
    shard, width = blueprint.shard, blueprint.arch.hidden_size
    if shard.ranks == 1:
        return None
    peers = None
    if blueprint.config.peer_all_reduce and width <= MAX_WIDTH:
        peers = PeerBuffers(
            rank=shard.rank,
            addresses=torch.zeros(shard.ranks, dtype=torch.int64, device=META),
            counts=torch.zeros(MAX_ROWS, dtype=torch.int32, device=META),
            width=width,
        )
    return AllReduce(_ShapesOnly(shard.rank, shard.ranks), peers)


class _ShapesOnly:
    """A `Collective` that only computes shapes, and contacts no other rank."""

    waits = False

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank = rank
        self.ranks = ranks

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(*x.shape[:-1], self.ranks * x.shape[-1])
