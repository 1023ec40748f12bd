"""How fast pages move between two GPUs, by transport, page size and count, against ceilings.

    python -m benchmarks.transfer.gpu [--cards 0,1] [--pool-gib 32] [--rounds 5] [--kind cuda]
                                      [--interference] [--copy-cost] [--folder DIR] [--commit HASH]

Runs two processes, each of which sees one GPU; ceilings are measured in the same run.
`--interference` adds how much slower a prefill of 1 x 8,192 gets while pages stream out, and decode
steps of 64 x 1,024 while pages stream in (`transfer_interference`). `--copy-cost` measures only the
cost of copies by kernel and by copy engines, and prints the fitted constants of `CopyCost`, saved
as copy_cost.json. `--kind double` runs the logic without a GPU. Saved as transfer_gpu.json.

Predictions for two H200s over NVLink (ceiling 396 GB/s): cuda_ipc, scattered pages of the 8B shape,
at 16 pages 300 to 340 GB/s, at 64 and more 350 to 385; one page 120 to 180 (22 us of copying behind
100 us of threads and polling). The 0.5B shape's pages: 200 at 64 pages, 340 from 512 on. shm 35 to
45 GB/s (pinned copies at 55 on both sides, overlapped), unix 6 to 8, tcp 4 to 6. Prefill at most
2 % slower, decode at most 3 %, as copy engines take no multiprocessor.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.results import RESULTS, save
from benchmarks.transfer.bare import bare_rounds
from benchmarks.transfer.ceilings import ceilings
from benchmarks.transfer.ends import Rate, Setting, Shape, rounds

PAGE_BYTES = {  # of 64 tokens
    "qwen2.5-0.5b": 24 * 2 * 2 * 64 * 64 * 2,
    "llama-3.1-8b": 32 * 2 * 8 * 64 * 128 * 2,
    "llama-3.1-8b fp8": 32 * 2 * 8 * 64 * (128 + 4),
    "llama-3.1-70b, 1 of 4 ranks": 80 * 2 * 2 * 64 * 128 * 2,
}
TRANSPORTS = ("cuda_ipc", "shm", "unix", "tcp")
COUNTS = (1, 4, 16, 64, 256, 1024, 4096)
FEW_COUNTS = (16, 256)  # of the transports that a bus or a network bounds
RUN_PAGES = (1, 16)


def measure(
    kind: str,
    child_device: str,
    pool_bytes: int,
    n_rounds: int,
    console: Console,
    transports: Sequence[str],
) -> list[dict[str, Any]]:
    """One row for each measurement."""
    rows: list[dict[str, Any]] = []
    for transport in transports:
        for model, page_bytes in PAGE_BYTES.items():
            setting = Setting(
                transport=transport,
                page_bytes=page_bytes,
                checksums=transport != "cuda_ipc",
                pool_bytes=pool_bytes,
                n_rounds=n_rounds,
                kind=kind,
                child_device=child_device,
            )
            shapes = [
                Shape(n_pages, run_pages)
                for n_pages in (COUNTS if transport == "cuda_ipc" else FEW_COUNTS)
                for run_pages in (RUN_PAGES if n_pages >= 16 else RUN_PAGES[:1])
                if n_pages <= setting.pool_pages
            ]
            for shape, rates in zip(shapes, rounds(setting, shapes), strict=True):
                rows.append(_row(model, setting, shape, rates))
                console.print(*(f"{value}" for value in rows[-1].values()))
    return rows


def _row(model: str, setting: Setting, shape: Shape, rates: Sequence[Rate]) -> dict[str, Any]:
    in_gb = [rate.landed / 1e9 for rate in rates]
    return {
        "transport": setting.transport,
        "model": model,
        "pages": shape.n_pages,
        "run_pages": shape.run_pages,
        "checksums": setting.checksums,
        "median_gb_per_s": round(statistics.median(in_gb), 2),
        "least_gb_per_s": round(min(in_gb), 2),
        "most_gb_per_s": round(max(in_gb), 2),
        "median_sent_gb_per_s": round(statistics.median(rate.sent / 1e9 for rate in rates), 2),
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table("GB/s", *(str(n) for n in COUNTS), title="pages between two cards")
    names = dict.fromkeys((r["transport"], r["model"], r["run_pages"]) for r in rows)
    for name in names:
        found = {
            row["pages"]: f"{row['median_gb_per_s']:.1f}"
            for row in rows
            if (row["transport"], row["model"], row["run_pages"]) == name
        }
        transport, model, run = name
        label = f"{transport}, {model}, " + ("scattered" if run == 1 else f"runs of {run}")
        table.add_row(label, *(found.get(n, "") for n in COUNTS))
    return table


@click.command(help=__doc__)
@click.option("--cards", default="0,1", show_default=True, help="Of the sender, the receiver.")
@click.option("--pool-gib", default=33.0, show_default=True)
@click.option("--rounds", "n_rounds", default=5, show_default=True)
@click.option("--kind", type=click.Choice(["cuda", "double"]), default="cuda")
@click.option("--interference", is_flag=True)
@click.option(
    "--transport", "transports", multiple=True, type=click.Choice(TRANSPORTS), default=TRANSPORTS
)
@click.option("--copy-cost", "costs", is_flag=True)
@click.option("--name", default="transfer_gpu", show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), default=RESULTS)
@click.option("--commit", help="Where this is no checkout of git.")
def main(
    cards: str,
    pool_gib: float,
    n_rounds: int,
    kind: str,
    interference: bool,
    transports: Sequence[str],
    costs: bool,
    name: str,
    folder: Path,
    commit: str | None,
) -> None:
    sender, _, receiver = cards.partition(",")
    os.environ["CUDA_VISIBLE_DEVICES"] = sender  # before torch looks
    console = Console()
    if costs:
        from benchmarks.transfer.copy_cost import measure as measure_costs

        figures = measure_costs(receiver, console)
        console.print(f"saved {save('copy_cost', {'cards': cards, **figures})}")
        return
    found: dict[str, Any] = {"pool_gib": pool_gib, "n_rounds": n_rounds, "cards": cards}
    if kind == "cuda":
        found["ceilings_gb_per_s"] = ceilings(receiver)
        console.print(found["ceilings_gb_per_s"])
    bare = {what: bare_rounds(what, 1 << 20, 1 << 28, n_rounds) for what in ("tcp", "unix")}
    found["bare_gb_per_s"] = {k: round(statistics.median(v) / 1e9, 2) for k, v in bare.items()}
    rows = measure(kind, receiver, int(pool_gib * 2**30), n_rounds, console, transports)
    console.print(_table(rows))
    found["rows"] = rows
    if interference:
        from benchmarks.transfer.interference import interference_figures

        found["interference"] = interference_figures(receiver)
        console.print(found["interference"])
    console.print(f"saved {save(name, found, folder=folder, commit=commit)}")


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.transfer.gpu")
