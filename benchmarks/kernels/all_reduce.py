"""All-reduce: NCCL, torch's symmetric memory and our own kernel, by size, against the link rate.

    python -m benchmarks.kernels.all_reduce --ranks 2 [--folder FOLDER]

One process per GPU. Rows of 8,192 bf16, as in a 70B model's layers: 1 row is 16 KiB. Figures are
medians over replays of a CUDA graph of many calls, on the slowest rank. `floor` is the time for
each rank to read its peers' data at the measured rate of a copy between two GPUs; `norm` includes
the residual and RMSNorm that follow (a second kernel, or the same one). Every result is compared
with the sum in float32, and ours between the ranks, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.results import RESULTS, save
from twolane.engine.cuda.peers import share_buffers
from twolane.engine.kernels.rows.all_reduce import (
    MAX_ROWS,
    PeerBuffers,
    all_reduce,
    all_reduce_norm,
)
from twolane.engine.kernels.rows.norm import rms_norm
from twolane.engine.parallel.collective import Collective
from twolane.engine.ranks.joining import join
from twolane.engine.ranks.place import Place

WIDTH, BF16 = 8192, torch.bfloat16
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CALLS, REPLAYS = 20, 15
Call = Callable[[], object]


def time_us(call: Call, ranks: Collective) -> float:
    """Median of one call, on the slowest rank."""
    device = torch.device("cuda", ranks.rank)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        call()
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        for _ in range(CALLS):
            call()
        graph.capture_end()
        times = []
        for _ in range(REPLAYS):
            ranks.all_gather(torch.zeros(1, device=device))  # all begin together
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / CALLS)
    slowest = ranks.all_gather(torch.tensor([median(times[3:])], device=device)).max()
    return float(slowest)


def link_rate(rank: int, ranks: int) -> float:
    """Bytes/s of a copy from the next GPU."""
    ours, theirs = (
        torch.zeros(512 << 20, dtype=torch.uint8, device=f"cuda:{i}")
        for i in (rank, (rank + 1) % ranks)
    )
    times = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        ours.copy_(theirs)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return float(ours.numel() / median(times))


class Symmetric:
    """torch's one-shot all-reduce over its symmetric memory, without multicast."""

    def __init__(self, ranks: Collective, n: int) -> None:
        import torch.distributed._symmetric_memory as memory

        group = dist.group.WORLD
        assert group is not None
        self.name = group.group_name
        device = torch.device("cuda", ranks.rank)
        self.buffer = memory.empty(n * WIDTH, dtype=BF16, device=device)
        memory.rendezvous(self.buffer, self.name)
        self.out = torch.empty(n * WIDTH, dtype=BF16, device=device)

    def sum(self) -> object:
        return torch.ops.symm_mem.one_shot_all_reduce_out(self.buffer, "sum", self.name, self.out)


def measure(n: int, ranks: Collective, peers: PeerBuffers, rate: float) -> dict[str, Any]:
    device = torch.device("cuda", ranks.rank)
    torch.manual_seed(ranks.rank)
    x = torch.randn(n, WIDTH, device=device).to(BF16)
    parts = ranks.all_gather(x).view(n, ranks.ranks, WIDTH)
    expected = parts.float().sum(1)
    scale = expected.abs().max()
    weight = torch.ones(WIDTH, device=device)
    scratch, residual, out = x.clone(), torch.zeros_like(x), torch.empty_like(x)

    def close(found: torch.Tensor, name: str) -> None:
        error = float((found.float() - expected).abs().max() / scale)
        assert error < 1e-2, f"{name} is wrong by {error}"

    def nccl() -> None:
        dist.all_reduce(scratch)

    def nccl_norm() -> None:
        dist.all_reduce(scratch)
        rms_norm(scratch, weight, out=out, epsilon=1e-5, residual=residual)

    def ours_norm() -> None:
        all_reduce_norm(x, weight, peers, residual=residual, out=out, epsilon=1e-5)

    n_bytes = x.numel() * x.itemsize
    row: dict[str, Any] = {"bytes": n_bytes, "rows": n}
    row["floor_us"] = (ranks.ranks - 1) * n_bytes / rate * 1e6
    nccl()
    close(scratch, "nccl")
    scratch.zero_()
    row["nccl_us"] = time_us(nccl, ranks)
    row["nccl_norm_us"] = time_us(nccl_norm, ranks)
    try:
        symmetric = Symmetric(ranks, n)
        symmetric.buffer.copy_(x.view(-1))
        symmetric.sum()
        close(symmetric.out.view(n, WIDTH), "symmetric")
        row["symmetric_us"] = time_us(symmetric.sum, ranks)
    except (RuntimeError, AttributeError, ImportError) as error:
        row["symmetric_us"], row["symmetric_error"] = None, str(error).splitlines()[0]
    row["ours_us"] = row["ours_norm_us"] = None
    if n <= MAX_ROWS:
        all_reduce(x, peers, out=out)
        close(out, "ours")
        gathered = ranks.all_gather(out).view(n, ranks.ranks, WIDTH)
        assert all(torch.equal(gathered[:, i], out) for i in range(ranks.ranks)), "ranks differ"
        row["ours_us"] = time_us(lambda: all_reduce(x, peers, out=out), ranks)
        row["ours_norm_us"] = time_us(ours_norm, ranks)
    return {k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}


def run_rank(place: Place, folder: Path) -> None:
    device = torch.device("cuda", place.rank)
    torch.cuda.set_device(device)
    ranks = join("nccl", place, in_order=False, device=device)
    rate = link_rate(place.rank, place.ranks)
    rate = float(ranks.all_gather(torch.tensor([rate], device=device)).min())
    peers = share_buffers(ranks, width=WIDTH, dtype=BF16, device=device)
    assert peers is not None, "these GPUs cannot map each other's memory"
    is_first = place.rank == 0
    if is_first:
        print(f"{place.ranks} ranks; a GPU reads another at {rate / 1e9:.0f} GB/s")
        print("    KiB    floor      nccl  symmetric      ours  norm:nccl  norm:ours  (us)")
    rows = []
    for n in ROWS:
        row = measure(n, ranks, peers, rate)
        rows.append(row)
        names = ("floor_us", "nccl_us", "symmetric_us", "ours_us", "nccl_norm_us", "ours_norm_us")
        shown = "  ".join(f"{row[name] if row[name] is not None else '-':>8}" for name in names)
        if is_first:
            print(f"{row['bytes'] // 1024:7d} {shown}", flush=True)
    if is_first:
        figures = {"ranks": place.ranks, "link_gb_per_s": round(rate / 1e9, 1), "points": rows}
        print("saved", save(f"rank_sum_{place.ranks}", figures, folder=folder))
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=RESULTS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        run_rank(Place(args.rank, args.ranks, args.store), args.folder)
        return 0
    if torch.cuda.device_count() < args.ranks:
        print(f"{torch.cuda.device_count()} GPUs here, {args.ranks} are needed")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "benchmarks.kernels.all_reduce",
            "--ranks",
            str(args.ranks),
        ]
        command += ["--store", str(Path(folder) / "store"), "--folder", str(args.folder)]
        environment = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "0"}
        processes = [
            subprocess.Popen([*command, "--rank", str(i)], env=os.environ | environment)
            for i in range(args.ranks)
        ]
        return _wait(processes)


def _wait(processes: list[subprocess.Popen[bytes]]) -> int:
    """0 if all processes succeed; if one fails, the others are killed, since they would wait for
    it."""
    left = list(processes)
    while left:
        for process in left:
            try:
                code = process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            left.remove(process)
            if code:
                for other in left:
                    other.kill()
                    other.wait()
                return code
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())
