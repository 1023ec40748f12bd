"""Where a cluster's processes listen and what others dial, as a topology says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from twolane.deploy.errors import StartError
from twolane.deploy.spec.parse_topology import parse_topology
from twolane.deploy.spec.resolve import resolve
from twolane.deploy.spec.specs import ProcessSpec
from twolane.deploy.spec.topology_file import read_topology


def test_addresses_of_a_cluster_are_said_once_for_every_process() -> None:
    topology = parse_topology(
        {
            "bind_host": "0.0.0.0",
            "advertise_host": "10.77.0.11",
            "ports": "7300-7399",
            "pools": [{"role": "both"}],
        }
    )
    cluster = resolve(topology)
    specs: list[ProcessSpec] = [cluster.router(), *cluster.workers("10.77.0.11:7300")]
    for spec in specs:
        assert (spec.bind_host, spec.advertise_host) == ("0.0.0.0", "10.77.0.11")
        assert spec.ports == "7300-7399"


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("ports", "7300", "ports is '7300'; it must name the first and the last, like 7300-7399"),
        (
            "workers",
            {"worker_metrics_ports": "7400"},
            "worker_metrics_ports is '7400'; it must name the first and the last",
        ),
        ("advertise_host", "0.0.0.0", "advertise_host is 0.0.0.0, which others cannot dial"),
    ],
)
def test_an_address_that_cannot_be_is_refused_at_its_line(
    key: str, value: object, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(f"pools:\n  - role: both\n{key}: {value!r}\n")
    with pytest.raises(StartError, match=rf"^{file}:3: {why}"):
        read_topology(file)
