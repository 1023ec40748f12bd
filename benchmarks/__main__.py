"""`python -m benchmarks [NAME …]`: measure this machine; results are saved in benchmarks/results/.

The benchmarks run one after the other, so that they do not disturb each other. Without names: all.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import click

from twolane.testing import start_local

MODULES = {
    "page_waste": "traffic.page_waste",
    "transfer": "transfer.cpu",
    "engine_cpu": "engine.cpu",
    "recall": "engine.recall",
    "startup": "cluster.startup",
    "router_overhead": "control_plane.router_overhead",
    "router_scale": "control_plane.router_scale",
    "prefix_affinity": "control_plane.prefix_affinity",
    "tls_cost": "control_plane.tls_cost",
    "worker_overhead": "control_plane.worker_overhead",
}
COMPARISON = "split_or_colocated"
# Sized for the bundled model on two cores: half of their capacity, and nearly all of it.
LOAD = ("--workload", "chat", "--scale", "0.25", "--rate", "4", "--rate", "8")
SLO = ("--slo-ttft-ms", "500", "--slo-gap-ms", "50")


def compare_split_with_colocated() -> None:
    """One prefill and one decode worker against two colocated ones, with the bundled model on the
    CPU."""
    with (
        start_local(colocated=2, device="cpu") as colocated,
        start_local(prefill=1, decode=1, device="cpu") as split,
    ):
        targets = (
            *("--target", f"colocated={colocated.endpoint}"),
            *("--target", f"split={split.endpoint}"),
        )
        _run("load.run", *targets, *LOAD, *SLO, "--name", COMPARISON)


def _run(module: str, *options: str) -> None:
    click.secho(f"== {module}", bold=True)
    done = subprocess.run([sys.executable, "-m", f"benchmarks.{module}", *options], check=False)
    if done.returncode:
        raise click.ClickException(f"{module} ended with {done.returncode}")


@click.command(help=__doc__)
@click.argument("names", nargs=-1, type=click.Choice([*MODULES, COMPARISON]))
def main(names: Sequence[str]) -> None:
    for name in names or [*MODULES, COMPARISON]:
        if name == COMPARISON:
            compare_split_with_colocated()
        else:
            _run(MODULES[name])


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
