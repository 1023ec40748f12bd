"""How long `make demo` takes in two checkouts, in turn.

    python -m benchmarks.cluster.demo_pairs BEFORE [--pairs 5]

BEFORE is another checkout of twolane, installed (`make install` there); the other one is this. Runs
alternate, so that other load on the machine affects both alike. Saved as demo_pairs.json: seconds
of each run, the commit of BEFORE, and the median of the differences.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from pathlib import Path

import click

from benchmarks.results import RESULTS, save

_HERE = Path(__file__).parents[2]


def demo_s(checkout: Path) -> float:
    """Seconds of one run. Raises CalledProcessError."""
    began_s = time.monotonic()
    subprocess.run(["make", "-s", "demo"], cwd=checkout, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began_s


@click.command(help=__doc__)
@click.argument("before", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--pairs", "n_pairs", default=5, show_default=True)
@click.option("--folder", type=Path, default=RESULTS)
def main(before: Path, n_pairs: int, folder: Path) -> None:
    pairs = []
    for n in range(n_pairs):
        pairs.append({"before_s": round(demo_s(before), 2), "here_s": round(demo_s(_HERE), 2)})
        click.echo(f"pair {n + 1}: {pairs[-1]['before_s']} s before, {pairs[-1]['here_s']} s here")
    slower_s = statistics.median(pair["here_s"] - pair["before_s"] for pair in pairs)
    click.echo(f"slower in the median of the pairs: {slower_s:.2f} s")
    figures = {
        "before": subprocess.check_output(
            ["git", "describe", "--always", "--abbrev=40", "--dirty"], cwd=before, text=True
        ).strip(),
        "load_average_1_min": os.getloadavg()[0],
        "pairs": pairs,
        "median_slower_s": round(slower_s, 2),
    }
    click.echo(f"saved {save('demo_pairs', figures, folder=folder)}")


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.cluster.demo_pairs")
