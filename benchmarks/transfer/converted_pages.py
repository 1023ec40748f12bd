"""How fast a GPU converts pages to other layouts: Llama-3.1-8B, 8,192 tokens in scattered pages.

    python -m benchmarks.transfer.converted_pages [--programs 32 --programs 64]

Measures the kernel alone, and with the copies to another process' pool on the last visible GPU. The
rate counts source bytes and is the best of five. FP8 pages of another size are gathered 16 bytes at
a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from benchmarks.results import RESULTS, save
from benchmarks.transfer.far_pool import far_pool
from benchmarks.transfer.pools import open_pool
from twolane.kvtransfer.layouts.gather import Paging
from twolane.layout import Layout
from twolane.worker.cuda.memory import CudaMemory
from twolane.worker.cuda.page_converter import FP8_DTYPE, CudaPageConverter

N_TOKENS = 64 * 128
USUAL = Layout(
    ranks=1, dtype="bfloat16", page_tokens=64, layers=32, kv_heads=8, head_dim=128, whole_kv_heads=8
)
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "page size 64 to 16": ({}, {"page_tokens": 16}),
    "page size 16 to 64": ({"page_tokens": 16}, {}),
    "4 ranks to 1": ({"ranks": 4, "kv_heads": 2}, {}),
    "bfloat16 to FP8": ({}, {"dtype": FP8_DTYPE}),
    "bfloat16 of 2 ranks to FP8 of 4, 64 to 16": (
        {"ranks": 2, "kv_heads": 4},
        {"dtype": FP8_DTYPE, "ranks": 4, "kv_heads": 2, "page_tokens": 16},
    ),
    "FP8, 64 to 16": ({"dtype": FP8_DTYPE}, {"dtype": FP8_DTYPE, "page_tokens": 16}),
}


def measure(ours: Layout, theirs: Layout, programs: tuple[int, ...]) -> dict[str, int]:
    """Rates in GB/s by the number of programs, and with copies to a peer."""
    n_pages = N_TOKENS // ours.page_tokens
    pool = open_pool("cuda", 2 * n_pages, ours.page_bytes, fill=True, parts=ours.ranks)
    memory = pool.transfers
    assert isinstance(memory, CudaMemory)
    row = np.random.default_rng(1).permutation(2 * n_pages)[:n_pages].tolist()
    src = Paging(ours.page_tokens, theirs.page_tokens, theirs.page_bytes).sources(
        row, 0, N_TOKENS // theirs.page_tokens, N_TOKENS
    )
    maker = CudaPageConverter([part.address for part in memory.parts], ours, theirs, memory.device)
    slots = torch.from_numpy(src.astype(np.int32)).cuda()
    out = torch.empty(len(src), theirs.page_bytes, dtype=torch.uint8, device="cuda")
    n_bytes = n_pages * ours.page_bytes
    figures = {}
    for n in programs:
        best = best_s(lambda n=n: maker.convert(slots, out, programs=n))  # type: ignore[misc]
        figures[f"programs_{n}_gb_per_s"] = round(n_bytes / best / 1e9)
    made = memory.made(ours, theirs)
    lane = made.open_copy_stream()
    dst = np.random.default_rng(2).permutation(len(src))
    last_card = str(torch.cuda.device_count() - 1)
    with far_pool(last_card, len(src), theirs.page_bytes, theirs.ranks) as address:
        peer = made.open_peer(address)

        def send() -> None:
            lane.to_peer(peer, src, dst)
            fence = lane.mark()
            while not fence.is_done():
                pass

        figures["to_peer_gb_per_s"] = round(n_bytes / best_s(send) / 1e9)
        lane.close()
        peer.close()
    pool.close()
    return figures


def best_s(work: Callable[[], None]) -> float:
    """The shortest time in seconds. The first call, which compiles, does not count."""
    times = []
    for _ in range(6):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times[1:])


@click.command(help=__doc__)
@click.option("--programs", multiple=True, type=int, default=(32, 64, 132), show_default=True)
@click.option("--folder", type=Path, default=RESULTS)
@click.option("--commit", help="of this code, where it is no checkout of git")
def main(programs: tuple[int, ...], folder: Path, commit: str | None) -> None:
    found = {}
    for name, (source, target) in PAIRS.items():
        found[name] = measure(replace(USUAL, **source), replace(USUAL, **target), programs)
        print(name, found[name], flush=True)
    figures = {"cards": torch.cuda.device_count(), "tokens": N_TOKENS, "pairs": found}
    print("saved", save("made_pages", figures, folder=folder, commit=commit))


if __name__ == "__main__":
    main()
