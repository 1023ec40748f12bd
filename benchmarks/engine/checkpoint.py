"""How fast a checkpoint is loaded onto the GPU, beside what its disk gives.

    python -m benchmarks.engine.checkpoint [--disk DIR] [--rounds 3]

Writes a checkpoint of random weights in the shape of Llama-3.1-8B (16 GB, in shards) to DIR, a new
folder that is removed at the end. A round: the files are dropped from the page cache and read by
several threads (the disk's own rate), dropped again and loaded by a new engine process, and loaded
once more from the page cache. A load is the time from the end of imports until the last weight is
on the card, while kernels are read from Triton's cache beside it.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
from safetensors.torch import save_file

from benchmarks.engine.points import LLAMA_8B, Shape
from benchmarks.engine.start import start_once
from benchmarks.result_options import result_options
from benchmarks.results import save
from twolane.engine.model_files.architecture import read_architecture
from twolane.engine.model_files.shard import WHOLE
from twolane.engine.model_files.weights import allocate_weights

SHARD_BYTES = 4 << 30
THREADS = 8
CHUNK_BYTES = 8 << 20
N_PAGES = 1024


def write_checkpoint(shape: Shape, folder: Path, device: str, shard_bytes: int) -> list[Path]:
    """The shards of a random checkpoint, as the Hub has them. They are on the disk on return."""
    (folder / "config.json").write_text(json.dumps(shape.config()), encoding="utf-8")
    with torch.device(device):
        _, parts = allocate_weights(read_architecture(folder), torch.bfloat16, WHOLE, fp8=False)
    shards: list[dict[str, torch.Tensor]] = [{}]
    room = shard_bytes
    for part in parts:
        assert isinstance(part.target, torch.Tensor)
        drawn = torch.randn(part.target.shape, device=device) * part.target.shape[-1] ** -0.5
        if room < drawn.numel() * 2:
            shards.append({})
            room = shard_bytes
        shards[-1][part.name] = drawn.to(torch.bfloat16).cpu()
        room -= drawn.numel() * 2
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, folder / name)
    placed = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    index = json.dumps({"weight_map": placed})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    return [folder / name for name in names]


def forget(files: Sequence[Path]) -> None:
    """Drop them from the page cache."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_s(files: Sequence[Path]) -> float:
    """Seconds to read them by THREADS threads, without looking at them."""

    def chunks() -> Iterator[tuple[Path, int]]:
        for path in files:
            for start in range(0, path.stat().st_size, CHUNK_BYTES):
                yield path, start

    def read(chunk: tuple[Path, int]) -> None:
        path, start = chunk
        with path.open("rb", buffering=0) as file:
            os.preadv(file.fileno(), [bytearray(CHUNK_BYTES)], start)

    began_s = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in threads.map(read, chunks()):
            pass
    return time.perf_counter() - began_s


def measure(files: Sequence[Path], n_rounds: int) -> dict[str, Any]:
    gb = sum(path.stat().st_size for path in files) / 1e9
    options = ["--pages", str(N_PAGES), "--load-format", "safetensors"]
    rounds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as cache:
        start_once(files[0].parent, options, Path(cache))  # compiles
        for _ in range(n_rounds):
            found: dict[str, float] = {}
            forget(files)
            found["disk_gb_per_s"] = gb / read_s(files)
            forget(files)
            for where in ("disk", "page_cache"):
                start = start_once(files[0].parent, options, Path(cache))
                found[f"loaded_from_{where}_gb_per_s"] = gb / (
                    start["loaded_s"] - start["imported_s"]
                )
                for stage in ("imported", "loaded", "ready"):
                    found[f"{stage}_from_{where}_s"] = start[f"{stage}_s"]
            rounds.append({name: round(value, 2) for name, value in found.items()})
            print(rounds[-1], flush=True)
    figures: dict[str, Any] = {
        name: round(median(one[name] for one in rounds), 2) for name in rounds[0]
    }
    ratios = [one["loaded_from_disk_gb_per_s"] / one["disk_gb_per_s"] for one in rounds]
    return {
        "gb": round(gb, 2),
        "files": len(files),
        **figures,
        "of_disk": round(median(ratios), 3),
        "rounds": rounds,
    }


@click.command(help=__doc__, context_settings={"show_default": True})
@click.option("--disk", type=click.Path(path_type=Path), help="Where to write.  [default: TMPDIR]")
@click.option("--rounds", "n_rounds", default=3)
@result_options("engine_checkpoint")
def main(disk: Path | None, n_rounds: int, name: str, folder: Path, commit: str | None) -> None:
    with tempfile.TemporaryDirectory(dir=disk) as scratch:
        began_s = time.perf_counter()
        files = write_checkpoint(LLAMA_8B, Path(scratch), "cuda", SHARD_BYTES)
        torch.cuda.empty_cache()
        print(f"wrote {len(files)} shards in {time.perf_counter() - began_s:.0f} s", flush=True)
        figures = measure(files, n_rounds)
    print(figures)
    print("saved", save(name, figures, folder=folder, commit=commit))


if __name__ == "__main__":
    main()
