"""What attacks cost a cluster: the router's memory, and others' goodput.

    python -m benchmarks.cluster.attacks [-k NAMES]

Runs tests/faults/test_attacks.py, and saves what each attack did as attacks.json. The tests assert
the bounds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from benchmarks.results import RESULTS, save

SAVED_AT = (
    "TWOLANE_ATTACKS"  # environment variable of the tests: the file that gets a line for each
)


@click.command(help=__doc__)
@click.option("-k", "names", default="", help="Only these, as for pytest.")
@click.option("--folder", type=Path, default=RESULTS)
def main(names: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        lines = Path(scratch) / "attacks"
        command = [sys.executable, "-m", "pytest", "-m", "soak", "tests/faults/test_attacks.py"]
        command += ["-k", names] if names else []
        done = subprocess.run(command, check=False, env={**os.environ, SAVED_AT: str(lines)})
        if done.returncode:
            raise click.ClickException(f"an attack exceeded its bounds: {done.returncode}")
        figures = {
            "load_average_1_min": os.getloadavg()[0],
            "attacks": [json.loads(line) for line in lines.read_text().splitlines()],
        }
    click.echo(f"saved {save('attacks', figures, folder=folder)}")


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.cluster.attacks")
