"""Each GPU kernel alone, against the card's own ceilings, measured in the same run.

    python -m benchmarks.kernels.each [--only decode,prefill,small,…] [--folder FOLDER]

Shapes are those of Llama-3.1-8B, inputs random. Figures are medians over replays of a CUDA graph of
many calls on different data. `share`: the measured rate over the limiting ceiling, read or matmul.
"""

import sys
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.kernels.card import (
    BF16,
    Call,
    Table,
    empty,
    randn,
)
from benchmarks.kernels.sections import measure_sections
from twolane.engine.cuda.products import Products
from twolane.engine.kernels.attention.decode_attention import decode_attention
from twolane.engine.kernels.attention.decode_plan import (
    DecodePlan,
    allocate_plan,
    items_for,
    plan_decode,
)
from twolane.engine.kernels.attention.prefill_attention import config_for, prefill_attention
from twolane.engine.kernels.attention.prefill_plan import plan_prefill
from twolane.engine.kernels.pages.kv_view import KVView, allocate_view
from twolane.engine.kernels.pages.page_copy import copy_pages
from twolane.engine.kernels.pages.rope_write import rope_write
from twolane.engine.kernels.pdl import APART, OVERLAP
from twolane.engine.kernels.products.few_rows import PartialSums, few_rows_product
from twolane.engine.kernels.products.gated_many_rows import gated_many_rows
from twolane.engine.kernels.rows.norm import rms_norm
from twolane.engine.kernels.rows.sample import sample
from twolane.engine.kernels.rows.silu import silu_mul
from twolane.engine.model_files.fp8 import FP8, LARGEST
from twolane.engine.model_files.rope import Rope

HEADS, KV_HEADS, DIM, HIDDEN, WIDE, VOCAB, LAYERS = 32, 8, 128, 4096, 14336, 128_256, 32
QKV = (HEADS + 2 * KV_HEADS) * DIM
SCALE = DIM**-0.5
DECODE_POINTS = (
    (1, 128), (1, 4096), (8, 1024), (32, 1024), (64, 1024), (128, 1024), (256, 1024), (64, 4096),
)  # fmt: skip
PREFILL_POINTS = (
    (1, 0, 512), (1, 0, 2048), (1, 0, 8192), (2, 0, 4096), (4, 0, 2048), (16, 0, 2048),
    (4, 0, 4096), (4, 6144, 2048),
)  # fmt: skip
STEP_POINTS = ((1, 128), (1, 4096), (8, 1024), (32, 1024), (64, 1024), (256, 1024), (64, 4096))
PRODUCTS = {"qkv": (QKV, HIDDEN), "out": (HIDDEN, HIDDEN), "gate_up": (2 * WIDE, HIDDEN),
            "down": (HIDDEN, WIDE)}  # fmt: skip


def fill_fp8(view: KVView) -> None:
    """Random keys and values, clamped since torch converts values beyond FP8's range to NaN."""
    for part in view.parts():
        for some in torch.split(part, 64):
            some.copy_((randn(*some.shape) * 100).clamp(-LARGEST, LARGEST))
    view.plane_scales().fill_(0.01)


class Pool:
    """Pages of random keys and values with shuffled tables, for rows of one length."""

    def __init__(self, batch: int, context: int, *, layers: int, dtype: torch.dtype = BF16) -> None:
        each = -(-context // 64)
        self.view: KVView = allocate_view(
            batch * each, layers=layers, kv_heads=KV_HEADS, head_dim=DIM, dtype=dtype, device="cuda"
        )
        if dtype == BF16:
            self.view.values.normal_()
        else:
            fill_fp8(self.view)
        self.tables = torch.randperm(batch * each, device="cuda").view(batch, each).int()
        self.lengths = torch.full((batch,), context, dtype=torch.int32, device="cuda")
        self.layers = layers
        self.bytes = 2 * batch * context * KV_HEADS * self.view.plane_values // 64
        self.bytes *= dtype.itemsize

    def plan(self) -> DecodePlan:
        rows = len(self.lengths)
        cores = torch.cuda.get_device_properties(0).multi_processor_count
        return allocate_plan(
            rows, max_items=items_for(rows, kv_heads=KV_HEADS, cores=cores),
            kv_heads=KV_HEADS, group=HEADS // KV_HEADS, head_dim=DIM, device="cuda",
        )  # fmt: skip


def bench_decode(table: Table) -> None:
    for dtype in (BF16, FP8):
        for batch, context in DECODE_POINTS:
            pool = Pool(batch, context, layers=4, dtype=dtype)
            queries, out, plan = randn(batch, HEADS, DIM), empty(batch, HEADS, DIM), pool.plan()
            plan_decode(plan, pool.lengths, pool.tables, page_tokens=64)
            calls = [
                partial(decode_attention, queries, pool.view, layer, pool.tables, plan,
                        out=out, scale=SCALE)
                for layer in range(4)
            ]  # fmt: skip
            name = f"decode {'fp8 ' if dtype == FP8 else ''}{batch} x {context}"
            table.add(name, calls * 4, n_bytes=pool.bytes + 2 * out.nbytes)


def bench_prefill(table: Table) -> None:
    for rows, start, new in PREFILL_POINTS:
        pool = Pool(rows, start + new, layers=2)
        queries, out = randn(rows * new, HEADS, DIM), empty(rows * new, HEADS, DIM)
        size = config_for(pool.view).block_tokens
        tiles = torch.from_numpy(plan_prefill([start] * rows, [new] * rows, block_tokens=size))
        operations = 4 * DIM * HEADS * rows * (start * new + new * (new + 1) / 2)
        name = f"{rows} x {new}" + (f" behind {start}" if start else "")
        calls = [
            partial(prefill_attention, queries, pool.view, layer, pool.tables, tiles.cuda(),
                    out=out, scale=SCALE)
            for layer in range(2)
        ]  # fmt: skip
        if start:
            table.add(f"prefill {name}", calls * 2, operations=operations)
            continue
        # Beside torch's own on the fresh chunk alone, with keys and values for every head.
        q, k, v = (randn(rows, new, HEADS, DIM).transpose(1, 2) for _ in range(3))
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            attend = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True)
            table.add(f"torch cudnn {name}", [attend] * 4, operations=operations)
        table.add(f"prefill {name}", calls * 2, operations=operations)
        peer, own = table.rows[-2:]
        own["of_cudnn"] = round(own["time_us"] / peer["time_us"], 3)
        print(f"{'':34s} {own['of_cudnn']:10.3f} of cudnn's time")


def bench_small(table: Table) -> None:
    cos, sin = (torch.from_numpy(t).cuda() for t in Rope(500000.0).tables(8192, DIM))
    weight = randn(HIDDEN)
    for n in (1, 64, 256, 8192):
        xs = [randn(n, HIDDEN) for _ in range(max(2, min(64, (1 << 28) // (n * HIDDEN * 2))))]
        out = empty(n, HIDDEN)
        for dtype in (BF16, torch.float32):
            residual = randn(n, HIDDEN, dtype=dtype)
            calls: list[Call] = [
                partial(rms_norm, x, weight, out=out, epsilon=1e-5, residual=residual) for x in xs
            ]
            name = f"norm + residual {str(dtype)[6:]} {n}"
            table.add(name, calls, n_bytes=2 * out.nbytes + 2 * residual.nbytes)
        thin = empty(n, WIDE)
        calls = [partial(silu_mul, randn(n, 2 * WIDE), out=thin) for _ in xs[:8]]
        table.add(f"silu {n}", calls, n_bytes=3 * thin.nbytes)
        view = Pool(max(1, n // 64), 64, layers=8).view
        qkv, queries = randn(n, QKV), empty(n, HEADS, DIM)
        slots = torch.randperm(view.n_pages * 64, device="cuda")[:n]
        positions = torch.randint(0, 8192, (n,), device="cuda", dtype=torch.int32)
        calls = [
            partial(rope_write, qkv, view, i, positions, slots, cos, sin, queries=queries)
            for i in range(8)
        ]
        table.add(f"rope + write {n}", calls, n_bytes=2 * qkv.nbytes)
    for n in (1, 64, 256):
        logits = [randn(n, VOCAB) for _ in range(2)]
        ints = torch.arange(n, device="cuda", dtype=torch.int32)
        tokens, logprobs, seeds = ints.clone(), empty(n, dtype=torch.float32), ints.long()
        for temperature in (0.0, 1.0):
            t = torch.full((n,), temperature, device="cuda")
            calls = [
                partial(sample, x, t, seeds, ints, ints, tokens=tokens, logprobs=logprobs)
                for x in logits
            ]
            table.add(f"sample t={temperature} {n}", calls * 4, n_bytes=logits[0].nbytes)
    page_bytes = LAYERS * 2 * KV_HEADS * 64 * DIM * 2
    for n in (4, 64, 256):
        source = torch.randint(0, 255, (n, page_bytes), dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        taken, put = (torch.randperm(n, device="cuda").int() for _ in range(2))
        call = partial(
            copy_pages, source.data_ptr(), target.data_ptr(), taken, put, page_bytes=page_bytes
        )
        table.add(f"page copy {n} x 8 MiB", [call] * 4, n_bytes=2 * source.nbytes)


def bench_products(table: Table) -> None:
    sums = PartialSums("cuda")
    for name, (outer, inner) in {**PRODUCTS, "head": (VOCAB, HIDDEN)}.items():
        weights = [randn(outer, inner) for _ in range(max(2, (1 << 29) // (outer * inner * 2)))]
        n_bytes = float(weights[0].nbytes)
        for rows in (1, 2, 8, 32, 64, 128):
            x, out = randn(rows, inner), empty(rows, outer)
            calls: list[Call] = [partial(torch.mm, x, w.t(), out=out) for w in weights]
            table.add(f"cublas {name} {rows}", calls, n_bytes=n_bytes)
            calls = [partial(few_rows_product, x, w, out=out, sums=sums) for w in weights]
            table.add(f"streamed {name} {rows}", calls, n_bytes=n_bytes)


def bench_gated(table: Table) -> None:
    """Prefill's gate_up with silu, as two kernels and as one; long enough to be limited by
    power."""
    weights = [randn(2 * WIDE, HIDDEN) / HIDDEN**0.5 for _ in range(4)]
    for rows in (512, 1024, 2048, 4096, 8192):
        x, wide, out = randn(rows, HIDDEN), empty(rows, 2 * WIDE), empty(rows, WIDE)

        def apart(w: torch.Tensor, x: torch.Tensor, wide: torch.Tensor, out: torch.Tensor) -> None:
            torch.mm(x, w.t(), out=wide)
            silu_mul(wide, out=out)

        again = 10 * 8192 // rows
        operations = 4.0 * rows * WIDE * HIDDEN
        calls: list[Call] = [partial(apart, w, x, wide, out) for w in weights]
        table.add(f"cublas gate_up, silu {rows}", calls * again, operations=operations)
        calls = [partial(gated_many_rows, x, w, out=out) for w in weights]
        table.add(f"tall gated {rows}", calls * again, operations=operations)


class DecodeStep:
    """All kernels and products of a decode step in order: the minimum that an engine can reach."""

    def __init__(self, batch: int, context: int, weights: list[dict[str, torch.Tensor]]) -> None:
        self.weights = weights
        self.products = Products(exact=False)
        self.pool = Pool(batch, context, layers=LAYERS)
        self.plan = self.pool.plan()
        self.norm = randn(HIDDEN)
        self.cos, self.sin = (torch.from_numpy(t).cuda() for t in Rope(500000.0).tables(8192, DIM))
        self.x, self.residual, self.normed = (randn(batch, HIDDEN) for _ in range(3))
        self.queries, self.seen = (empty(batch, HEADS, DIM) for _ in range(2))
        self.positions = self.pool.lengths - 1
        self.slots = self.pool.tables[:, -1].long() * 64 + self.positions % 64
        self.zeros = torch.zeros_like(self.positions)
        self.floats = torch.zeros(batch, device="cuda")

    def run(self) -> None:
        view, tables, x = self.pool.view, self.pool.tables, self.x
        plan_decode(self.plan, self.pool.lengths, tables, page_tokens=64)
        for i, w in enumerate(self.weights[:-1]):
            self._add_norm(x)
            qkv = self.products(self.normed, w["qkv"], None, pdl=OVERLAP)
            rope_write(
                qkv, view, i, self.positions, self.slots, self.cos, self.sin,
                queries=self.queries, pdl=OVERLAP,
            )  # fmt: skip
            decode_attention(
                self.queries, view, i, tables, self.plan, out=self.seen, scale=SCALE, pdl=OVERLAP
            )
            x = self.products(self.seen.view(-1, HIDDEN), w["out"], None, pdl=OVERLAP)
            self._add_norm(x)
            thin = self.products.gated(self.normed, w["gate_up"], None, pdl=OVERLAP)
            x = self.products(thin, w["down"], None, pdl=OVERLAP)
        self._add_norm(x)
        logits = self.products(self.normed, self.weights[-1]["head"], None, pdl=OVERLAP)
        sample(
            logits, self.floats, self.zeros.long(), self.zeros, self.zeros,
            tokens=self.zeros.clone(), logprobs=self.floats.clone(), pdl=APART,
        )  # fmt: skip

    def _add_norm(self, x: torch.Tensor) -> None:
        rms_norm(x, self.norm, out=self.normed, epsilon=1e-5, residual=self.residual, pdl=OVERLAP)


def bench_step(table: Table) -> None:
    weights = [{n: randn(*shape) for n, shape in PRODUCTS.items()} for _ in range(LAYERS)]
    weights.append({"head": randn(VOCAB, HIDDEN)})
    weight_bytes = sum(w.nbytes for layer in weights for w in layer.values())
    for batch, context in STEP_POINTS:
        step = DecodeStep(batch, context, weights)
        n_bytes = weight_bytes + LAYERS * step.pool.bytes
        table.add(f"step {batch} x {context}", [step.run], n_bytes=n_bytes)


SECTIONS: dict[str, Callable[[Table], None]] = {
    "decode": bench_decode,
    "prefill": bench_prefill,
    "small": bench_small,
    "products": bench_products,
    "gated": bench_gated,
    "step": bench_step,
}


if __name__ == "__main__":
    sys.exit(measure_sections("kernels", SECTIONS, __doc__))
