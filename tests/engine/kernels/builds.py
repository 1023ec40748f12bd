"""Builds for Hopper ahead of time, without a GPU: what a launch would compile, taken from it.

A wrapper is called with CPU tensors while `JITFunction.run` only records; each record is then
compiled for sm_90a, and its PTX and what the assembler reported are read.
"""

import hashlib
import json
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import triton
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import compiler
from triton.backends.nvidia.compiler import CUDABackend, get_ptxas
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime.cache import CacheManager, get_cache_manager
from triton.runtime.jit import JITFunction

TARGET = GPUTarget("cuda", 90, 32)
_FP8_MADE = re.compile(r"cvt\.rn\.satfinite\.e4m3x2\.f32\s+(%rs\d+)")
_FP8_WIDENED = re.compile(r"cvt\.rn\.f16x2\.e4m3x2\s+%r\d+, (%rs\d+)")


@dataclass(frozen=True)
class Launch:
    function: Any
    arguments: dict[str, Any]
    options: dict[str, Any]


@dataclass(frozen=True)
class Build:
    """Facts of one compiled kernel. `registers` a thread, the rest in bytes or counts."""

    name: str
    wgmma: int
    mma: int
    tensor_copies: int
    wide_copies: int  # 128-bit global loads or copies
    narrow_vectors: int  # global loads of several words, but fewer than 128 bits
    rewidened: int  # FP8 pairs just made that are made wide again
    spill_bytes: int
    registers: int
    shared_bytes: int
    is_serialized: bool  # one wgmma waits for the other, as ptxas could not do better


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Collects the launches made inside; nothing runs."""
    launches: list[Launch] = []

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launches.append(launch_of(self, args, kwargs))

    with mock.patch.object(JITFunction, "run", run):
        yield launches


def source_of(launch: Launch) -> ASTSource:
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    for i, param in enumerate(launch.function.params):
        value = launch.arguments[param.name]
        if param.is_constexpr:
            kind, key = "constexpr", None
            constants[(i,)] = value
        else:
            kind, key = native_specialize_impl(
                CUDABackend,
                value,
                False,
                not param.do_not_specialize,
                not param.do_not_specialize_on_alignment,
            )
            if kind == "constexpr":
                constants[(i,)] = value
            elif isinstance(key, str) and "D" in key:
                attributes[(i,)] = CUDABackend.parse_attr(key)
        signature[param.name] = kind
    made = GluonASTSource if launch.function.is_gluon() else ASTSource
    return made(launch.function, signature, constants, attributes)


def launch_of(function: Any, arguments: Sequence[Any], options: dict[str, Any]) -> Launch:
    """As `function[grid](*arguments, **options)` would make it."""
    names = [p.name for p in function.params]
    held = dict(zip(names, arguments, strict=False))
    held |= {key: value for key, value in options.items() if key in names}
    return Launch(function, held, {k: v for k, v in options.items() if k not in names})


def variant(launch: Launch) -> str:
    """Equal for launches that one compiled kernel serves, and for no others."""
    source = source_of(launch)
    facts = (source.signature, source.constants, source.attrs, launch.options)
    return repr((launch.function.fn.__qualname__, *(sorted(f.items()) for f in facts)))


def build(launch: Launch) -> Any:
    return triton.compile(source_of(launch), target=TARGET, options=launch.options)


@contextmanager
def reports_kept() -> Iterator[None]:
    """What the assembler reports of the kernels that are compiled inside, which Triton throws away,
    is kept in Triton's cache, as the kernels are."""

    def run(command: Sequence[str], *, stderr: Any, **options: Any) -> Any:
        done = subprocess.run(command, stderr=stderr, **options)
        (source,) = (Path(its) for its in command if its.endswith(".ptx"))
        _kept_with(source.read_text()).put(Path(stderr.name).read_text(), "report", binary=False)
        return done

    with mock.patch.object(
        compiler, "subprocess", SimpleNamespace(**{**vars(subprocess), "run": run})
    ):
        yield


def has_report(compiled: Any) -> bool:
    return _kept_with(compiled.asm["ptx"]).get_file("report") is not None


def _kept_with(ptx: str) -> CacheManager:
    tool = get_ptxas(TARGET.arch)
    key = f"{tool.path} {tool.version} as Triton calls it {ptx}"
    return get_cache_manager(hashlib.sha256(key.encode()).hexdigest())


def facts(compiled: Any) -> Build:
    ptx = compiled.asm["ptx"]
    report = Path(_kept_with(ptx).get_file("report")).read_text()
    spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill", report))
    registers = max(int(n) for n in re.findall(r"Used (\d+) registers", report))
    return Build(
        name=compiled.metadata.name,
        wgmma=ptx.count("wgmma.mma_async"),
        mma=len(re.findall(r"\bmma\.sync", ptx)),
        tensor_copies=ptx.count("cp.async.bulk.tensor"),
        wide_copies=len(
            re.findall(
                r"ld\.global\S*\.v4\.b32|ld\.global\S*\.v2\.b64|cp\.async\.c[ag]\S* .*0x10", ptx
            )
        ),
        narrow_vectors=len(
            re.findall(r"ld\.global\S*\.v[24]\.b(?:8|16)|ld\.global\S*\.v2\.b32", ptx)
        ),
        rewidened=len({*_FP8_MADE.findall(ptx)} & {*_FP8_WIDENED.findall(ptx)}),
        spill_bytes=spills,
        registers=registers,
        shared_bytes=compiled.metadata.shared,
        is_serialized="serialized" in report,
    )


def cases() -> dict[str, Callable[[], object]]:
    """A launch of each kernel as the engine makes it for Llama-3.1-8B, by name; of attention also
    for other heads."""
    import torch

    from tests.engine.kernels.few_rows_builds import streamed_launches
    from twolane.engine.kernels.attention.decode_attention import decode_attention
    from twolane.engine.kernels.attention.decode_config import DecodeAttentionConfig, Fp8Products
    from twolane.engine.kernels.attention.decode_plan import allocate_plan, plan_decode
    from twolane.engine.kernels.attention.prefill_attention import (
        PrefillConfig,
        config_for,
        prefill_attention,
    )
    from twolane.engine.kernels.attention.prefill_overlapped import launch_overlapped
    from twolane.engine.kernels.pages.dequantise import dequantise_pages
    from twolane.engine.kernels.pages.kv_view import allocate_view
    from twolane.engine.kernels.pages.page_checksum import checksum_pages
    from twolane.engine.kernels.pages.page_convert import (
        ConversionTable,
        convert_pages,
        convert_pages_to_fp8,
    )
    from twolane.engine.kernels.pages.page_copy import copy_pages
    from twolane.engine.kernels.pages.rope_write import rope_write
    from twolane.engine.kernels.products.gated_many_rows import gated_many_rows
    from twolane.engine.kernels.rows.all_reduce import PeerBuffers, all_reduce, all_reduce_norm
    from twolane.engine.kernels.rows.embed import embed
    from twolane.engine.kernels.rows.norm import rms_norm
    from twolane.engine.kernels.rows.quantise import quantise_rows
    from twolane.engine.kernels.rows.sample import sample
    from twolane.engine.kernels.rows.silu import silu_mul
    from twolane.engine.model_files.fp8 import FP8, Fp8Rows

    def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.zeros(*shape, dtype=dtype)

    def small(n: int, width: int) -> Fp8Rows:
        return Fp8Rows.empty(n, width)

    options: dict[str, Any] = {"layers": 2, "kv_heads": 8, "head_dim": 128, "device": "cpu"}
    view = allocate_view(2, dtype=torch.bfloat16, **options)
    fp8 = allocate_view(2, dtype=FP8, **options)
    queries, rows = zeros(4, 32, 128), zeros(4, 4096)
    ints, floats = zeros(4, dtype=torch.int32), zeros(4, dtype=torch.float32)
    tables = zeros(4, 16, dtype=torch.int32)
    plan = allocate_plan(4, max_items=8, kv_heads=8, group=4, head_dim=128, device="cpu")
    angles = zeros(9, 128, dtype=torch.float32)
    halves = DecodeAttentionConfig(products=Fp8Products.HALVES)
    general = PrefillConfig(block_tokens=64, warps=4, stages=3)
    wide = zeros(4, 8192)
    peers = PeerBuffers(
        rank=1, addresses=zeros(4, dtype=torch.int64),
        counts=zeros(128, dtype=torch.int32), width=8192,
    )  # fmt: skip
    attention: dict[str, Any] = {"out": queries, "scale": 0.1}

    def paged(granule_bytes: int, granules: int, units: int) -> dict[str, Any]:
        """A small piece of such a table, out of pages of 4 units."""
        narrow = zeros(granules, dtype=torch.int32)
        table = ConversionTable(
            base=narrow.long(), unit=narrow, step=narrow, granule_bytes=granule_bytes,
            units=units, slots_a_page=4,
        )  # fmt: skip
        slots = zeros(2, units, dtype=torch.int32)
        return {"address": 1 << 40, "slots": slots, "table": table, "page_bytes": 8 << 20}

    def remade(granule_bytes: int, granules: int, units: int) -> None:
        out = zeros(2, granules * granule_bytes, dtype=torch.uint8)
        convert_pages(**paged(granule_bytes, granules, units), out=out)

    def remade_fp8(page_tokens: int, dim: int, dtype: torch.dtype, units: int) -> None:
        tokens = min(64, page_tokens)
        tiles = 2 * 8 * page_tokens // tokens
        out = zeros(2, tiles * tokens * (dim + 4), dtype=torch.uint8)
        convert_pages_to_fp8(
            **paged(tokens * dim * dtype.itemsize, tiles, units), out=out, dtype=dtype,
            kv_heads=8, page_tokens=page_tokens, head_dim=dim,
        )  # fmt: skip

    made: dict[str, Callable[[], object]] = {
        "plan": lambda: plan_decode(plan, ints, tables, page_tokens=64),
        "decode": lambda: decode_attention(queries, view, 1, tables, plan, **attention),
        "decode overlapping": lambda: decode_attention(
            queries, view, 1, tables, plan, pdl=True, **attention
        ),
        "decode window": lambda: decode_attention(
            queries, view, 1, tables, plan, window=99, **attention
        ),
        "turned": lambda: decode_attention(queries, fp8, 1, tables, plan, **attention),
        "turned overlapping": lambda: decode_attention(
            queries, fp8, 1, tables, plan, pdl=True, **attention
        ),
        "turned window": lambda: decode_attention(
            queries, fp8, 1, tables, plan, window=99, **attention
        ),
        "turned halves": lambda: decode_attention(
            queries, fp8, 1, tables, plan, config=halves, **attention
        ),
        "prefill fp8": lambda: prefill_attention(
            queries, fp8, 1, tables, tables, config=general, **attention
        ),
        "widen": lambda: dequantise_pages(
            fp8,
            1,
            tables,
            ints,
            out=allocate_view(4, dtype=torch.bfloat16, **options | {"layers": 1}),
        ),
        "rope fp8": lambda: rope_write(
            zeros(4, 6144), fp8, 1, ints, ints.long(), angles, angles, queries=queries
        ),
        "prefill": lambda: prefill_attention(
            queries, view, 1, tables, tables, config=general, **attention
        ),
        "prefill window": lambda: prefill_attention(
            queries, view, 1, tables, tables, config=general, window=99, **attention
        ),
        "prefill overlapped": lambda: launch_overlapped(
            queries, view, 1, tables, tables, window=0, stages=2, **attention
        ),
        "prefill overlapped window": lambda: launch_overlapped(
            queries, view, 1, tables, tables, window=99, stages=2, **attention
        ),
        "embed": lambda: embed(ints, ints, ints, rows, out=rows, pdl=True),
        "norm": lambda: rms_norm(rows, rows[0], out=rows, epsilon=1e-5, residual=rows, pdl=True),
        "rope": lambda: rope_write(
            zeros(4, 6144), view, 1, ints, ints.long(), angles, angles, queries=queries
        ),
        "rope norm bias": lambda: rope_write(
            zeros(4, 6144), view, 1, ints, ints.long(), angles, angles, queries=queries,
            bias=zeros(6144), query_norm=zeros(128), key_norm=zeros(128),
        ),
        "silu": lambda: silu_mul(zeros(4, 28672), out=zeros(4, 14336)),
        "sample": lambda: sample(
            zeros(4, 128_256), floats, ints.long(), ints, ints, tokens=ints, logprobs=floats
        ),
        "page sums": lambda: checksum_pages(1 << 20, ints, page_bytes=8 << 20, out=ints.long()),
        "copy": lambda: copy_pages(1 << 20, 1 << 21, ints, ints, page_bytes=8 << 20),
        "made": lambda: remade(4096, 32, 1),
        "made of several": lambda: remade(4096, 32, 4),
        "made of heads": lambda: remade(64 * 128 * 2 * 4, 4, 1),
        "made by 16 bytes": lambda: remade(16, 4096, 4),
        "made by 2560 bytes": lambda: remade(2560, 32, 4),
        "made fp8": lambda: remade_fp8(64, 128, torch.bfloat16, 1),
        "made fp8 of several": lambda: remade_fp8(128, 128, torch.bfloat16, 2),
        "made fp8 16": lambda: remade_fp8(16, 128, torch.bfloat16, 1),
        "made fp8 80": lambda: remade_fp8(64, 80, torch.float16, 1),
        "made fp8 of float32": lambda: remade_fp8(64, 128, torch.float32, 1),
        "made fp8 256": lambda: remade_fp8(64, 256, torch.bfloat16, 1),
        **streamed_launches(),
        "tall gated": lambda: gated_many_rows(
            zeros(600, 4096), zeros(512, 4096), out=zeros(600, 256)
        ),
        "norm fp8": lambda: rms_norm(
            rows, rows[0], out=small(4, 4096), epsilon=1e-5, residual=rows
        ),
        "silu fp8": lambda: silu_mul(zeros(4, 28672), out=small(4, 14336)),
        "quantise": lambda: quantise_rows(rows, out=small(4, 4096)),
        "rank sum": lambda: all_reduce(wide, peers, out=wide),
        "rank sum norm": lambda: all_reduce_norm(
            wide, wide[0], peers, residual=wide, out=wide, epsilon=1e-5, pdl=True
        ),
    }  # fmt: skip

    def other(heads: int, kv_heads: int, dim: int) -> None:
        q, group = zeros(4, heads, dim), heads // kv_heads
        held = allocate_view(
            2, layers=2, kv_heads=kv_heads, head_dim=dim, dtype=torch.bfloat16, device="cpu"
        )
        items = allocate_plan(
            4, max_items=8, kv_heads=kv_heads, group=group, head_dim=dim, device="cpu"
        )
        made[f"decode {dim}"] = lambda: decode_attention(
            q, held, 1, tables, items, out=q, scale=0.1
        )
        made[f"prefill {dim}"] = lambda: prefill_attention(
            q, held, 1, tables, tables, config=config_for(held), out=q, scale=0.1
        )

    narrow = allocate_view(2, dtype=torch.float16, **options | {"head_dim": 64})
    made["prefill overlapped 64"] = lambda: launch_overlapped(
        zeros(4, 32, 64, dtype=torch.float16), narrow, 1, tables, tables, window=99, stages=2,
        out=zeros(4, 32, 64, dtype=torch.float16), scale=0.1,
    )  # fmt: skip

    for heads, kv_heads, dim in ((28, 4, 64), (8, 8, 80), (12, 4, 96), (8, 1, 256)):
        other(heads, kv_heads, dim)
    return made


def main() -> None:
    """Print the facts of every case as JSON, the work spread over the cores."""
    variants: dict[str, list[str]] = {}
    kinds: dict[str, Launch] = {}
    for name, call in cases().items():
        with recording() as made:
            call()
        variants[name] = [variant(launch) for launch in made]
        kinds |= zip(variants[name], made, strict=True)
    with reports_kept(), ThreadPoolExecutor() as pool:
        builds = dict(zip(kinds, pool.map(build, kinds.values()), strict=True))
        unknown = {kind: kinds[kind] for kind, its in builds.items() if not has_report(its)}
        triton.knobs.compilation.always_compile = True  # those were in the cache without one
        builds |= zip(unknown, pool.map(build, unknown.values()), strict=True)
    report = {name: [asdict(facts(builds[kind])) for kind in its] for name, its in variants.items()}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
