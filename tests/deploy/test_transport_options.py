"""What can be said of transports: on the command line, in a file, and what workers make of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.topologies import read, refusal, said
from twolane.deploy.cli.topology_options import topology_of
from twolane.deploy.errors import StartError
from twolane.deploy.process.compose_worker import transport_config
from twolane.deploy.spec.resolve import resolve
from twolane.deploy.spec.spec_json import from_json, to_json
from twolane.deploy.spec.specs import WorkerSpec
from twolane.deploy.spec.topology import given
from twolane.deploy.spec.topology_file import write_topology
from twolane.kvtransfer.page_lane import PageLane
from twolane.kvtransfer.transports.registry import TransportConfig
from twolane.security.tls import TlsFiles


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


@pytest.mark.parametrize(
    ("given_lane", "bind_host", "has_tls", "insecure", "expected"),
    [
        (None, "127.0.0.1", False, False, PageLane.PLAIN),
        (None, "127.0.0.1", True, False, PageLane.PLAIN),
        (None, "10.0.0.1", True, False, PageLane.ENCRYPTED),
        (None, "10.0.0.1", True, True, PageLane.ENCRYPTED),
        (None, "10.0.0.1", False, True, PageLane.PLAIN),
        (None, "0.0.0.0", True, False, PageLane.ENCRYPTED),
        ("keyed", "10.0.0.1", True, False, PageLane.KEYED),
        ("encrypted", "127.0.0.1", False, False, PageLane.ENCRYPTED),
        ("plain", "10.0.0.1", False, True, PageLane.PLAIN),
    ],
)
def test_pages_are_encrypted_beyond_the_loopback_unless_something_else_was_asked_for(
    given_lane: str | None, bind_host: str, has_tls: bool, insecure: bool, expected: PageLane
) -> None:
    (worker,) = resolve(topology_of({"colocated": 1})).workers("h:1")
    spec = replace(
        worker,
        bind_host=bind_host,
        tls=TlsFiles(Path("ca"), Path("cert"), Path("key")) if has_tls else None,
        insecure=insecure,
        settings=replace(worker.settings, page_lane=given_lane),
    )
    config = transport_config(spec)
    assert config.page_lane is expected
    assert config.sockets_of("tcp") == (4 if expected is PageLane.ENCRYPTED else 1)
    assert config.sockets_of("unix") == 1


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ("page_lane: plain", "page_lane is plain, and others could read and write pages at 10.0"),
        ("transports: [nixl]", "nixl sends pages unencrypted between hosts: add tcp to the trans"),
    ],
)
def test_pages_leave_no_host_unprotected_unless_that_was_asked_for(
    fields: str, refused: str, tmp_path: Path
) -> None:
    text = f"bind_host: 10.0.0.1\nworkers: {{{fields}}}\npools: [{{role: both}}]"
    (line,) = refusal(text, tmp_path)
    assert line.startswith(f"t.yaml:2: {refused}")
    text = f"bind_host: 10.0.0.1\npools:\n  - {{role: both}}\n  - {{role: decode, {fields}}}"
    (line,) = refusal(text, tmp_path)
    assert line.startswith(f"t.yaml:4: {refused}")
    assert read(text.replace("10.0.0.1", "127.0.0.1"), tmp_path)
    assert read(f"insecure: true\n{text}".replace("[nixl]", "[nixl, tcp]"), tmp_path)
    assert read(text.replace("[nixl]", "[nixl], trusted_fabric: true").replace(
        "plain", "keyed"), tmp_path)  # fmt: skip
    (worker,) = resolve(topology_of({"colocated": 1})).workers("h:1")
    is_lane = fields.startswith("page_lane")
    wrong: dict[str, Any] = {"page_lane": "plain"} if is_lane else {"transports": ("nixl",)}
    far = replace(worker, bind_host="10.0.0.1", settings=replace(worker.settings, **wrong))
    with pytest.raises(StartError, match=refused[:30]):
        transport_config(far)
