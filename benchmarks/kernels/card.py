"""What this card can do, and how long calls take on it: the basis of the benchmarks beside this."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
import triton
import triton.language as tl

from twolane.engine.model_files.fp8 import Fp8Rows

BF16 = torch.bfloat16
PRODUCT_OPERATIONS = 2 * 8192**3  # of the products that are the ceiling
_PRODUCTS = 4  # in one graph
Call = Callable[[], object]


def randn(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def empty(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(*shape, device="cuda", dtype=dtype)


def time_s(calls: Sequence[Call], *, replays: int = 9) -> float:
    """Median seconds per call, with all calls in one graph."""
    replay_s = in_graph(calls)
    for _ in range(2):
        replay_s()
    return median(replay_s() for _ in range(replays))


def in_graph(calls: Sequence[Call]) -> Callable[[], float]:
    """All calls in one graph; what is returned replays it and tells the seconds per call."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()

    def replay_s() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        took_ms: float = start.elapsed_time(end)
        return took_ms / 1e3 / len(calls)

    return replay_s


@triton.jit  # type: ignore[untyped-decorator]
def _read_kernel(source, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    held = tl.zeros([BLOCK], tl.int64)
    for start in tl.range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK, num_stages=1):
        held ^= tl.load(source + start + tl.arange(0, BLOCK))
    tl.store(out + tl.program_id(0), tl.xor_sum(held, 0))


@dataclass
class Table:
    """Rows of figures; `read` (bytes/s) and `matmul` (operations/s) are this card's ceilings."""

    read: float
    matmul: float
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, name: str, calls: Sequence[Call], *, n_bytes: float = 0.0, operations: float = 0.0
    ) -> None:
        """Measure and print one row; the share is of the slower of bytes and operations."""
        time = time_s(calls)
        share = max(n_bytes / self.read, operations / self.matmul) / time
        rate = f"{operations / time / 1e12:.0f} TFLOP/s" if operations else ""
        rate = rate or f"{n_bytes / time / 1e12:.2f} TB/s"
        print(f"{name:34s} {time * 1e6:10.2f} us  {share:6.1%}  {rate}", flush=True)
        self.rows.append(
            {"name": name, "time_us": round(time * 1e6, 2), "share": round(share, 3),
             "bytes": int(n_bytes), "operations": int(operations)}
        )  # fmt: skip


def measure_ceilings() -> Table:
    source = torch.randint(0, 2**60, (3 << 27,), device="cuda")  # 3 GiB
    out = empty(4096, dtype=torch.int64)
    n = source.numel()
    reads = [
        time_s([partial(_read_kernel[programs,], source, out, n, BLOCK=block, num_warps=8)])
        for block in (2048, 4096)
        for programs in (132 * 4, 132 * 8)
    ]
    half = source.view(2, -1)
    copied = time_s([lambda: half[0].copy_(half[1])])
    table = Table(8 * n / min(reads), PRODUCT_OPERATIONS / time_s(_bf16_calls()))
    ceilings = {"read_tb_per_s": table.read / 1e12, "copy_tb_per_s": 8 * n / copied / 1e12,
                "matmul_tflop_per_s": table.matmul / 1e12}  # fmt: skip
    print(", ".join(f"{name} {value:.2f}" for name, value in ceilings.items()))
    table.rows.append({"name": "ceilings", **{k: round(v, 3) for k, v in ceilings.items()}})
    return table


def measure_fp8_ceiling() -> float:
    """Operations/s of an FP8 product of 8192 cubed, with one scale per row."""
    return PRODUCT_OPERATIONS / time_s(_fp8_calls())


def bf16_products() -> Callable[[], float]:
    """Each call multiplies 8192 cubed a few times, and tells the seconds of one product."""
    return in_graph(_bf16_calls())


def fp8_products() -> Callable[[], float]:
    """As `bf16_products`, in FP8."""
    return in_graph(_fp8_calls())


def _bf16_calls() -> list[Call]:
    a, b = randn(8192, 8192), randn(8192, 8192)
    return [lambda: a @ b] * _PRODUCTS


def _fp8_calls() -> list[Call]:
    rows = Fp8Rows.empty(8192, 8192, device=torch.device("cuda"))
    rows.copy_(randn(8192, 8192))
    call = partial(
        torch._scaled_mm, rows.values, rows.values.t(), scale_a=rows.scales[:, None],
        scale_b=rows.scales[None, :], out_dtype=BF16, use_fast_accum=True,
    )  # fmt: skip
    return [call] * _PRODUCTS
