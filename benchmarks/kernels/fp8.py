"""All variants of the FP8 kernels, to choose the defaults.

    python -m benchmarks.kernels.fp8 [--only decode,prefill,products,rows] [--folder FOLDER]

Measured like `benchmarks.kernels.each`. Before a variant of decode attention is timed, its answers
are compared with the float16 variant's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from benchmarks.kernels.card import Table, empty, measure_fp8_ceiling, randn
from benchmarks.kernels.each import DIM, HEADS, HIDDEN, KV_HEADS, PRODUCTS, QKV, SCALE, WIDE, Pool
from benchmarks.kernels.sections import measure_sections
from twolane.engine.kernels.attention.decode_attention import decode_attention
from twolane.engine.kernels.attention.decode_config import DecodeAttentionConfig, Fp8Products
from twolane.engine.kernels.attention.decode_plan import allocate_plan, plan_decode
from twolane.engine.kernels.attention.prefill_attention import (
    PrefillConfig,
    config_for,
    prefill_attention,
)
from twolane.engine.kernels.attention.prefill_plan import plan_prefill
from twolane.engine.kernels.pages.dequantise import dequantise_pages
from twolane.engine.kernels.pages.rope_write import rope_write
from twolane.engine.kernels.products.few_rows import PartialSums, few_rows_product
from twolane.engine.kernels.rows.norm import rms_norm
from twolane.engine.kernels.rows.quantise import quantise_rows
from twolane.engine.kernels.rows.silu import silu_mul
from twolane.engine.kernels.testing import relative_error
from twolane.engine.model_files.fp8 import FP8, Fp8Rows
from twolane.engine.model_files.rope import Rope

CUDA = torch.device("cuda")
PARTS, HALVES = Fp8Products.PARTS, Fp8Products.HALVES
DECODE_VARIANTS = {
    "bf16": DecodeAttentionConfig(),
    "fp8 halves": DecodeAttentionConfig(products=HALVES),
    "fp8 parts 2": DecodeAttentionConfig(products=PARTS, stages=2),
    "fp8 parts 3": DecodeAttentionConfig(products=PARTS, stages=3),
    "fp8 parts 4": DecodeAttentionConfig(products=PARTS, stages=4),
    "fp8 parts 3 split": DecodeAttentionConfig(products=PARTS, stages=3),
    "fp8 parts 3 pointers": DecodeAttentionConfig(products=PARTS, stages=3, tensor_copy=False),
}
DECODE_POINTS = ((64, 4096), (64, 1024), (256, 1024), (8, 1024), (1, 4096))
PREFILL_VARIANTS = (
    PrefillConfig(block_tokens=64, warps=4, stages=2),
    PrefillConfig(block_tokens=64, warps=4, stages=3),
    PrefillConfig(block_tokens=128, warps=8, stages=2),
    PrefillConfig(block_tokens=128, warps=8, stages=3),
)


def bench_decode(table: Table) -> None:
    for batch, context in DECODE_POINTS:
        queries = randn(batch, HEADS, DIM)
        pools = {
            "bf16": Pool(batch, context, layers=4),
            "fp8": Pool(batch, context, layers=4, dtype=FP8),
        }
        reference: torch.Tensor | None = None
        for name, config in DECODE_VARIANTS.items():
            pool = pools[name.split()[0]]
            plan, out = pool.plan(), empty(batch, HEADS, DIM)
            if name.endswith("split"):  # every row in two, for a shorter tail
                plan = allocate_plan(
                    batch, max_items=2 * batch + 16, kv_heads=KV_HEADS, group=HEADS // KV_HEADS,
                    head_dim=DIM, device="cuda",
                )  # fmt: skip
            plan_decode(plan, pool.lengths, pool.tables, page_tokens=64)
            calls = [
                partial(decode_attention, queries, pool.view, layer, pool.tables, plan,
                        out=out, scale=SCALE, config=config)
                for layer in range(4)
            ]  # fmt: skip
            calls[0]()
            if name == "fp8 halves":
                reference = out.clone()
            elif reference is not None:
                error = relative_error(out, reference)
                assert error < 1e-2, f"{name}: {error}"
            table.add(f"decode {name} {batch} x {context}", calls * 4, n_bytes=pool.bytes)
        del pools
        torch.cuda.empty_cache()


def bench_prefill(table: Table) -> None:
    for new in (2048, 8192):
        operations = 4 * DIM * HEADS * new * (new + 1) / 2
        queries, out = randn(new, HEADS, DIM), empty(new, HEADS, DIM)
        wide, small = (Pool(1, new, layers=2, dtype=dtype) for dtype in (torch.bfloat16, FP8))
        variants = [(f"prefill bf16 {new}", wide, config_for(wide.view))] + [
            (f"prefill fp8 {new} {c.block_tokens}/{c.warps}/{c.stages}", small, c)
            for c in PREFILL_VARIANTS
        ]
        for name, pool, config in variants:
            tiles = torch.from_numpy(plan_prefill([0], [new], block_tokens=config.block_tokens))
            calls = [
                partial(prefill_attention, queries, pool.view, layer, pool.tables, tiles.cuda(),
                        out=out, scale=SCALE, config=config)
                for layer in range(2)
            ]  # fmt: skip
            table.add(name, calls * 2, operations=operations)
        lengths = small.lengths
        scratch = Pool(1, new, layers=1).view
        widen = [
            partial(dequantise_pages, small.view, layer, small.tables, lengths, out=scratch)
            for layer in range(2)
        ]
        table.add(f"widen {new}", widen * 4, n_bytes=small.bytes + scratch.values.nbytes)


def small_rows(n: int, width: int) -> Fp8Rows:
    rows = Fp8Rows.empty(n, width, device=CUDA)
    rows.copy_(randn(n, width))
    return rows


def bench_products(table: Table) -> None:
    fp8 = replace(table, matmul=measure_fp8_ceiling())  # same rows, the ceiling of FP8
    print(f"fp8 matmul {fp8.matmul / 1e12:.0f} TFLOP/s")
    sums = PartialSums(CUDA)
    for name, (outer, inner) in PRODUCTS.items():
        copies = max(2, (1 << 28) // (outer * inner))
        wide = [randn(outer, inner) for _ in range(copies)]
        small = [small_rows(outer, inner) for _ in range(copies)]
        for n in (3, 8, 16, 64, 256, 2048, 8192):
            x, q = randn(n, inner), small_rows(n, inner)
            out = empty(n, outer)
            operations = 2.0 * n * outer * inner
            calls: list[Callable[[], object]] = [partial(torch.mm, x, w.t(), out=out) for w in wide]
            n_bytes = wide[0].nbytes + 2 * n * (inner + outer)
            table.add(f"mm bf16 {name} {n}", calls, n_bytes=n_bytes, operations=operations)
            for fast in (True, False):
                calls = [
                    partial(torch._scaled_mm, q.values, w.values.t(), scale_a=q.scales[:, None],
                            scale_b=w.scales[None, :], out_dtype=torch.bfloat16,
                            use_fast_accum=fast, out=out)
                    for w in small
                ]  # fmt: skip
                label = f"mm fp8 {name} {n} {'fast' if fast else 'careful'}"
                n_bytes = outer * inner + n * (inner + 2 * outer)
                fp8.add(label, calls, n_bytes=n_bytes, operations=operations)
            # One scale for all, as if the consumer applied those of rows and outputs.
            one = torch.ones((), device=CUDA)
            calls = [
                partial(torch._scaled_mm, q.values, w.values.t(), scale_a=one, scale_b=one,
                        out_dtype=torch.bfloat16, use_fast_accum=True, out=out)
                for w in small
            ]  # fmt: skip
            label = f"mm fp8 {name} {n} unscaled"
            fp8.add(label, calls, n_bytes=n_bytes, operations=operations)
        for n in (1, 8, 16, 32, 64, 128):
            q, out = small_rows(n, inner), empty(n, outer)
            calls = [partial(few_rows_product, q, w, out=out, sums=sums) for w in small]
            fp8.add(f"streamed fp8 {name} {n}", calls, n_bytes=outer * inner)
        del wide, small
        torch.cuda.empty_cache()


def bench_rows(table: Table) -> None:
    cos, sin = (torch.from_numpy(t).cuda() for t in Rope(500000.0).tables(8192, DIM))
    weight = randn(HIDDEN)
    for n in (3, 64, 8192):
        repeats = 8 if n == 8192 else 32
        x, residual = randn(n, HIDDEN), randn(n, HIDDEN)
        gate_up, qkv, queries = randn(n, 2 * WIDE), randn(n, QKV), empty(n, HEADS, DIM)
        for kind in ("bf16", "fp8"):
            out, thin = (
                Fp8Rows.empty(n, width, device=CUDA) if kind == "fp8" else empty(n, width)
                for width in (HIDDEN, WIDE)
            )
            item = 1 if kind == "fp8" else 2
            norm = partial(rms_norm, x, weight, out=out, epsilon=1e-5, residual=residual)
            table.add(f"norm {kind} {n}", [norm] * repeats, n_bytes=n * HIDDEN * (6 + item))
            silu = partial(silu_mul, gate_up, out=thin)
            table.add(f"silu {kind} {n}", [silu] * repeats, n_bytes=n * WIDE * (4 + item))
            pool = Pool(max(1, n // 64), 64, layers=8, dtype=FP8 if kind == "fp8" else x.dtype)
            slots = torch.arange(n, device=CUDA)  # as a prompt's chunk writes them
            if n <= 64:
                slots = (slots % pool.view.n_pages) * 64 + slots // pool.view.n_pages
            positions = torch.randint(0, 8192, (n,), device=CUDA, dtype=torch.int32)
            calls = [
                partial(rope_write, qkv, pool.view, i, positions, slots, cos, sin, queries=queries)
                for i in range(8)
            ]
            n_bytes = n * (2 * QKV + 2 * HEADS * DIM + 2 * item * KV_HEADS * DIM)
            table.add(f"rope {kind} {n}", calls, n_bytes=n_bytes)
        rows = Fp8Rows.empty(n, HIDDEN, device=CUDA)
        quantise = partial(quantise_rows, x, out=rows)
        table.add(f"quantise {n}", [quantise] * repeats, n_bytes=3 * n * HIDDEN)


SECTIONS: dict[str, Callable[[Table], None]] = {
    "decode": bench_decode,
    "prefill": bench_prefill,
    "products": bench_products,
    "rows": bench_rows,
}


if __name__ == "__main__":
    sys.exit(measure_sections("kernels_fp8", SECTIONS, __doc__))
