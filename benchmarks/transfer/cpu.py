"""How fast pages move between two processes of this machine, by transport, against memcpy.

    python -m benchmarks.transfer.cpu [--pool-mib 256] [--rounds 5]

Pages are at random places on both sides. `bare` is the same copy, or the same system calls, with
nothing around them; for nixl it is NIXL's own write over TCP, in requests of 8 MiB and in one
request for everything. memcpy is measured in the same run. Medians; saved as transfer_cpu.json.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from typing import Any

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.results import save
from benchmarks.transfer.bare import bare_rounds
from benchmarks.transfer.ends import Setting, rounds
from benchmarks.transfer.nixl import nixl_rounds
from twolane.kvtransfer.transports.nixl import agent

TRANSPORTS = ("tcp", "unix", "shm")
NIXL, NIXL_ALONE = "nixl", "nixl, one request"
PAGE_KIB = (16, 64, 256)


def measure(pool_bytes: int, n_rounds: int, console: Console) -> list[dict[str, Any]]:
    """One row for each measurement: what, page size, checksums (None: bare), rates in GB/s."""
    kinds: list[tuple[str, int, bool | None]] = [
        (kind, kib, sums)
        for kib in PAGE_KIB
        for kind, sums in _kinds()
    ]  # fmt: skip
    rows = []
    for kind, kib, sums in track(kinds, "measuring", console=console):
        if sums is None and kind in (NIXL, NIXL_ALONE):
            post_bytes = 8 << 20 if kind == NIXL else 0
            rates = nixl_rounds(kib * 1024, pool_bytes, n_rounds, post_bytes)
        elif sums is None:
            rates = bare_rounds(kind, kib * 1024, pool_bytes, n_rounds)
        else:
            (measured,) = rounds(Setting(kind, kib * 1024, sums, pool_bytes, n_rounds))
            rates = [rate.landed for rate in measured]
        in_gb = [round(rate / 1e9, 2) for rate in rates]
        rows.append(
            {
                "kind": kind,
                "page_kib": kib,
                "checksums": sums,
                "median_gb_per_s": round(statistics.median(in_gb), 2),
                "rounds_gb_per_s": in_gb,
            }
        )
    return rows


def _kinds() -> Iterator[tuple[str, bool | None]]:
    yield "memcpy", None
    if agent.is_installed():
        yield NIXL_ALONE, None
    for transport in (*TRANSPORTS, *((NIXL,) if agent.is_installed() else ())):
        yield transport, None
        yield transport, False
        yield transport, True


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table("GB/s", *(f"{kib} KiB" for kib in PAGE_KIB), title="pages between two processes")
    names = {None: "bare", False: "no checksums", True: "checksums"}
    for kind, sums in _kinds():
        cells = [
            f"{row['median_gb_per_s']:.1f}"
            for row in rows
            if row["kind"] == kind and row["checksums"] is sums
        ]
        table.add_row(kind if kind in ("memcpy", NIXL_ALONE) else f"{kind}, {names[sums]}", *cells)
    return table


@click.command(help=__doc__)
@click.option("--pool-mib", default=256, show_default=True)
@click.option("--rounds", "n_rounds", default=5, show_default=True)
@click.option("--name", default="transfer_cpu", show_default=True)
def main(pool_mib: int, n_rounds: int, name: str) -> None:
    os.environ["UCX_TLS"] = "tcp"  # of the nixl transport's two ends
    console = Console()
    if not agent.is_installed():
        console.print("nixl is not installed: left out")
    rows = measure(pool_mib << 20, n_rounds, console)
    console.print(_table(rows))
    path = save(name, {"pool_mib": pool_mib, "n_rounds": n_rounds, "rows": rows})
    console.print(f"saved {path}")


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.transfer.cpu")
