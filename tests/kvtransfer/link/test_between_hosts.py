"""Two hosts, told apart by the identities that hellos bring: what may carry pages between them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from twolane.kvtransfer.link.handshake import ReceiverIdentity, sender_hello
from twolane.kvtransfer.page_lane import PageLane, ReceiverLane
from twolane.kvtransfer.testing.memory import MemoryFabric
from twolane.kvtransfer.transport_names import TRANSPORTS
from twolane.kvtransfer.transports import registry
from twolane.kvtransfer.transports.common.shared_memory import PoolMemory
from twolane.kvtransfer.transports.nixl import agent
from twolane.kvtransfer.transports.registry import TransportConfig, open_landings
from twolane.v1 import transfer_pb2

LAYOUT = json.dumps(
    {"dtype": "bfloat16", "page_tokens": 16, "layers": 4, "kv_heads": 2, "head_dim": 64}
)
HOSTS = ("boot-a/pid:1/mnt:1/net:1/uid:1000", "boot-b/pid:1/mnt:1/net:1/uid:1000")


def landings(*names: str, lane: PageLane = PageLane.PLAIN) -> Any:
    fabric = MemoryFabric(call_later=lambda *args: None)
    pool = np.zeros((1, 8), dtype=np.uint8)
    made = {name: fabric.landing(2, pool, f"at {name}") for name in names}
    for landing in made.values():
        landing.lane = ReceiverLane.draw(lane)
    return made


def answer(
    sender: str,
    receiver: str,
    offered: tuple[str, ...] = TRANSPORTS,
    *,
    trusted_fabric: bool = False,
    lanes: tuple[PageLane | str, PageLane] = (PageLane.PLAIN, PageLane.PLAIN),
) -> transfer_pb2.ReceiverHello:
    hello = sender_hello("p", 7, "f", LAYOUT, offered)
    hello.host = sender
    hello.page_lane = lanes[0]
    identity = ReceiverIdentity(
        worker_id="d", epoch=2, fingerprint="f", layout=LAYOUT, host=receiver, lease_ms=6000,
        trusted_fabric=trusted_fabric,
    )  # fmt: skip
    return identity.answer(hello, landings(*TRANSPORTS, lane=lanes[1]))


@pytest.mark.parametrize("name", ["cuda_ipc", "shm", "unix"])
def test_transports_of_one_host_are_picked_within_one_identity_only(name: str) -> None:
    near, far = answer(HOSTS[0], HOSTS[0], (name,)), answer(HOSTS[0], HOSTS[1], (name,))
    assert near.transport == name
    assert (far.transport, far.refused_field) == ("", "transports")
    assert not far.transport_address
    assert answer(HOSTS[0], HOSTS[1], (name, "tcp")).transport == "tcp"
    unknown = answer("", HOSTS[1], (name,))
    assert unknown.refused_field == "transports", "a sender that names no host is on another one"


@pytest.mark.parametrize("changed", [0, 1, 2, 3, 4])
def test_another_boot_namespace_or_user_is_another_host(changed: int) -> None:
    parts = HOSTS[0].split("/")
    parts[changed] += "9"
    assert answer("/".join(parts), HOSTS[0], ("shm", "tcp")).transport == "tcp"


def test_nixl_goes_between_hosts_only_over_a_trusted_fabric() -> None:
    refused = answer(HOSTS[0], HOSTS[1], ("nixl",))
    assert (refused.transport, refused.refused_field) == ("", "trusted_fabric")
    assert "trusted_fabric: true" in refused.refused_message
    assert answer(HOSTS[0], HOSTS[1], ("nixl", "tcp")).transport == "tcp"
    assert answer(HOSTS[0], HOSTS[1], ("nixl", "tcp"), trusted_fabric=True).transport == "nixl"
    assert answer(HOSTS[0], HOSTS[0], ("nixl",)).transport == "nixl"


@pytest.mark.parametrize(
    ("host", "trusted", "expected"),
    [("127.0.0.1", False, True), ("::1", False, True), ("localhost", False, True),
     ("10.0.0.1", False, False), ("0.0.0.0", False, False), ("10.0.0.1", True, True)],
)  # fmt: skip
def test_nixl_does_not_listen_beyond_the_loopback_without_a_trusted_fabric(
    host: str, trusted: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "is_installed", lambda: True)
    monkeypatch.setattr(agent, "has_fabric", lambda: True)
    config = TransportConfig(bind_host=host, trusted_fabric=trusted)
    assert ("nixl" in config.offered(np.zeros((1, 8), dtype=np.uint8))) == expected


@pytest.mark.parametrize(
    "lanes",
    [("", PageLane.ENCRYPTED), (PageLane.PLAIN, PageLane.KEYED),
     (PageLane.KEYED, PageLane.ENCRYPTED), (PageLane.ENCRYPTED, PageLane.PLAIN)],
)  # fmt: skip
def test_unequal_page_lanes_are_refused_by_field_and_get_no_key(
    lanes: tuple[PageLane | str, PageLane],
) -> None:
    refused = answer(HOSTS[0], HOSTS[1], lanes=lanes)
    assert (refused.transport, refused.refused_field) == ("", "page_lane")
    assert not refused.page_key
    assert answer(HOSTS[0], HOSTS[0], lanes=lanes).transport == "cuda_ipc", "tcp alone has lanes"


def test_each_sender_gets_a_key_of_its_own_over_the_control_stream() -> None:
    lane = ReceiverLane.draw(PageLane.KEYED)
    assert lane.key_for(7) == lane.key_for(7) != lane.key_for(8)
    assert ReceiverLane.draw(PageLane.KEYED).key_for(7) != lane.key_for(7)
    given = answer(HOSTS[0], HOSTS[1], lanes=(PageLane.ENCRYPTED, PageLane.ENCRYPTED))
    assert (given.transport, given.page_lane, len(given.page_key)) == ("tcp", "encrypted", 32)
    old = answer(HOSTS[0], HOSTS[1], lanes=("", PageLane.PLAIN))
    assert (old.transport, old.page_key) == ("tcp", b""), "a sender that knows no lanes is plain"


def test_a_transport_whose_sender_writes_is_never_open_to_other_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = PoolMemory(4 * 4096, "test")
    pool = memory.array.reshape(4, 4096)
    config = TransportConfig(transports=("shm",))
    (landing,) = open_landings(2, pool, config, memory).values()
    assert landing.sender_writes
    landing.close()
    monkeypatch.setattr(registry, "ONE_HOST_ONLY", frozenset({"cuda_ipc", "unix"}))
    with pytest.raises(AssertionError, match="no proof that a sender has stopped writing"):
        open_landings(2, pool, config, memory)
    memory.close()
