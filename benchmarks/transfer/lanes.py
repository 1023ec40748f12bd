"""How fast pages move over tcp, by page lane and number of sockets, compared with TLS sockets.

    python -m benchmarks.transfer.lanes [--pool-mib 256] [--rounds 5] [--name transfer_lanes]

Both ends run on this machine and share its cores. `encrypted`, `keyed` and `plain` are the page
lanes of the transport: pages of 8 MiB (64 tokens of an 8B model) from random places to random
places, with checksums. `bare` is only sockets, with as many threads as the transport has: plain,
Python's TLS, and the records of the encrypted lane, with the CPU time of both ends. Rounds of all
kinds alternate, so that other load on the machine affects all of them alike. Medians and the best;
saved as transfer_lanes.json, with the milliseconds that the pages of a prompt take at the median
rate.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.results import RESULTS, save
from benchmarks.transfer.bare_lanes import PLAIN, RECORDS, TLS, BareRate, bare_lane_rate
from benchmarks.transfer.ends import Setting, rounds
from twolane.kvtransfer.page_lane import PageLane

SOCKETS = (1, 2, 4, 8)
TOKEN_BYTES = 128 * 1024  # 32 layers x keys and values x 8 heads x 128 numbers of 2 bytes
PAGE_BYTES = 64 * TOKEN_BYTES
PROMPT_TOKENS = (1024, 8192)
LANES = (PageLane.PLAIN, PageLane.KEYED, PageLane.ENCRYPTED)
BARE = (PLAIN, TLS, RECORDS)


def measure(pool_bytes: int, n_rounds: int, console: Console) -> list[dict[str, Any]]:
    """One row for each kind and number of sockets."""
    rates: dict[tuple[str, int], list[float]] = {}
    cpu: dict[tuple[str, int], list[BareRate]] = {}
    for _ in track(range(n_rounds), "measuring", console=console):
        for n in SOCKETS:
            for lane in LANES:
                setting = Setting(
                    "tcp", PAGE_BYTES, True, pool_bytes, n_rounds=2, sockets=n, lane=lane
                )
                (measured,) = rounds(setting)
                rates.setdefault((lane, n), []).extend(rate.landed for rate in measured)
            for kind in BARE:
                bare = bare_lane_rate(kind, n, 2 * pool_bytes)
                rates.setdefault((f"bare {kind}", n), []).append(bare.bytes_per_s)
                cpu.setdefault((f"bare {kind}", n), []).append(bare)
    return [_row(*key, found, cpu.get(key, [])) for key, found in rates.items()]


def _row(kind: str, n_sockets: int, rates: list[float], cpu: list[BareRate]) -> dict[str, Any]:
    median = statistics.median(rates)
    sender_s = [rate.sender_cpu_s_per_gb for rate in cpu]
    receiver_s = [rate.receiver_cpu_s_per_gb for rate in cpu]
    return {
        "kind": kind,
        "sockets": n_sockets,
        "median_gb_per_s": round(median / 1e9, 2),
        "best_gb_per_s": round(max(rates) / 1e9, 2),
        **{
            f"ms_of_{tokens}_tokens": round(1000 * tokens * TOKEN_BYTES / median, 1)
            for tokens in PROMPT_TOKENS
        },
        "sender_cpu_s_per_gb": round(statistics.median(sender_s), 3) if cpu else None,
        "receiver_cpu_s_per_gb": round(statistics.median(receiver_s), 3) if cpu else None,
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(
        "kind", "sockets", "GB/s, median", "best", *(f"ms, {n:,} tokens" for n in PROMPT_TOKENS),
        "CPU s/GB, sender", "receiver",
    )  # fmt: skip
    for row in sorted(rows, key=lambda row: (row["kind"], row["sockets"])):
        table.add_row(*(str(cell) for cell in row.values()))
    return table


@click.command(help=__doc__)
@click.option("--pool-mib", default=256, show_default=True)
@click.option("--rounds", "n_rounds", default=5, show_default=True)
@click.option("--name", default="transfer_lanes", show_default=True)
@click.option("--folder", type=Path, default=RESULTS)
@click.option("--commit", help="of this code, where it is no checkout of git")
def main(pool_mib: int, n_rounds: int, name: str, folder: Path, commit: str | None) -> None:
    console = Console()
    rows = measure(pool_mib << 20, n_rounds, console)
    console.print(_table(rows))
    figures = {
        "cores": os.cpu_count(),
        "load_average_1_min": os.getloadavg()[0],
        "pool_mib": pool_mib,
        "n_rounds": n_rounds,
        "rows": rows,
    }
    console.print(f"saved {save(name, figures, folder=folder, commit=commit)}")


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.transfer.lanes")
