"""How `pytest -n` deals the tests out: a file at a time, the long files first.

xdist's own order of files is by the number of their tests, so the long ones, which have few, would
come last, and the other processes would wait for them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[1]
KERNELS = "tests/engine/kernels"  # one unit: its last test looks at what the others have run

# Longest first. A file that is missing here only costs time.
LONG = (
    "tests/cluster/test_exact.py",
    "tests/deploy/test_up_process.py",
    "tests/deploy/monitoring/test_live.py",
    "tests/cluster/test_against_transformers.py",
    KERNELS,
    "tests/deploy/agent/test_over_agents.py",
    "tests/deploy/agent/test_acts_over_agents.py",
    "tests/deploy/kubernetes/test_cluster.py",
    "tests/deploy/agent/test_routers_over_agents.py",
    "tests/deploy/test_drain_ticket.py",
    "tests/cluster/test_unequal_ranks.py",
    "tests/deploy/cli/test_topology_options.py",
    "tests/deploy/test_up_local.py",
    "tests/faults/test_stopped_workers.py",
    "tests/kvtransfer/test_processes.py",
    "tests/engine/cuda/test_ranks.py",
    "tests/kvtransfer/test_property.py",
    "tests/cluster/test_unequal_sides.py",
    "tests/cluster/test_exact_in_memory.py",
    "tests/cluster/test_openai_clients.py",
    "tests/deploy/test_up_start.py",
    "tests/engine/cuda/test_fp8.py",
    "tests/cluster/test_virtual_cluster.py",
    "tests/deploy/simulator/test_agreement.py",
    "tests/benchmarks/goodput/test_measure.py",
    "tests/deploy/test_installed.py",
    "tests/deploy/test_bundled.py",
    "tests/deploy/test_launcher_ray.py",
    "tests/deploy/test_up_ranks.py",
    "tests/twolane/test_cli.py",
)


class LongFilesFirst(LoadScopeScheduling):  # type: ignore[misc]
    """One process runs all tests of a file, so that they can share fixtures."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def unit_of(nodeid: str) -> str:
    """The file of a test, or the folder whose tests stay together."""
    file = nodeid.partition("::")[0]
    return KERNELS if file.startswith(f"{KERNELS}/") else file


def long_first(items: list[pytest.Item]) -> None:
    """Sort the collected tests in place. Each process sorts alike."""
    ranks = {unit: rank for rank, unit in enumerate(LONG)}
    items.sort(key=lambda item: ranks.get(unit_of(item.nodeid), len(LONG)))


def make_scheduler(config: pytest.Config, log: Any) -> LongFilesFirst | None:
    """None leaves another `--dist` than loadfile to xdist."""
    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # the order is that of the collected tests
    return LongFilesFirst(config, log)
