"""What can be said of transports: on the command line, in a file, and what workers make of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.topologies import read, refusal, said
from twolane.deploy.cli.topology_options import topology_of
from twolane.deploy.process.compose_worker import transport_config
from twolane.deploy.spec.resolve import resolve
from twolane.deploy.spec.spec_json import from_json, to_json
from twolane.deploy.spec.specs import WorkerSpec
from twolane.deploy.spec.topology import given
from twolane.deploy.spec.topology_file import write_topology
from twolane.kvtransfer.transports.registry import TransportConfig


def test_checksums_and_sockets_reach_the_transports_of_the_workers(tmp_path: Path) -> None:
    text = """\
    workers: {transports: [unix], sockets: 3}
    pools: [{role: prefill, checksums: true}, {role: decode, checksums: false, sockets: 2}]
    """
    prefill, decode = resolve(read(text, tmp_path)).workers("h:1")
    (ours, theirs) = (
        transport_config(from_json(WorkerSpec, to_json(w))) for w in (prefill, decode)
    )
    assert (ours.sockets, theirs.sockets) == (3, 2)
    assert [ours.sums(name) for name in ("cuda_ipc", "unix")] == [True, True]
    assert [theirs.sums(name) for name in ("cuda_ipc", "unix")] == [False, False]
    (unsaid,) = resolve(topology_of({"colocated": 1})).workers("h:1")
    assert transport_config(unsaid) == TransportConfig()


def test_options_of_transports_are_written_as_fields(tmp_path: Path) -> None:
    for flag, on in (("--checksums", True), ("--no-checksums", False)):
        topology = topology_of(said("--transport", "unix", flag, "--sockets", "3"))
        assert given(topology.workers) == {"transports": ("unix",), "checksums": on, "sockets": 3}
        assert read(write_topology(topology), tmp_path) == topology


@pytest.mark.parametrize(
    ("fields", "far"),
    [("", "nixl, tcp"), (", transports: [shm, tcp]", "tcp"), (", transports: [nixl]", "nixl")],
)
def test_pages_over_networks_are_never_without_sums(fields: str, far: str, tmp_path: Path) -> None:
    refused = f"pages are always summed over networks ({far}): leave checksums on, or pin tran"
    text = f"workers: {{checksums: false{fields}}}\npools: [{{role: prefill}}, {{role: decode}}]"
    (line,) = refusal(text, tmp_path)
    assert line.startswith(f"t.yaml:1: {refused}")
    text = f"pools:\n  - {{role: both}}\n  - {{role: decode, checksums: false{fields}}}"
    (line,) = refusal(text, tmp_path)
    assert line.startswith(f"t.yaml:3: {refused}")
    assert read(text.replace("false", "true"), tmp_path)
