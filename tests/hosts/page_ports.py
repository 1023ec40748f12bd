"""The ports of workers where pages arrive, as others see them."""

from __future__ import annotations

import socket
from contextlib import suppress

from tests.hosts.fake_hosts import Host, Network
from twolane.engine.fake import FakeEngineConfig
from twolane.kvtransfer.page_lane import PageLane
from twolane.kvtransfer.transports.common.frames import Hello
from twolane.kvtransfer.transports.common.key_proof import NONCE_BYTES
from twolane.rpc.listen import host_of
from twolane.status import ClusterStatus

_PORTS = "7300-7399"  # of workers


def hold_pages(network: Network, status: ClusterStatus, sender: Host, receiver: Host) -> None:
    """What `sender` sends to page ports of `receiver` is lost until `Network.heal`; its calls are
    not."""
    calls = ", ".join(map(str, _grpc_ports(status, receiver)))
    receiver.run(
        f"nft 'add rule inet faults input ip saddr {sender.ip} tcp dport {_PORTS} "
        f"tcp dport != {{ {calls} }} drop'"
    )


def unacknowledged(status: ClusterStatus, sender: Host, receiver: Host) -> int:
    """Bytes that `sender` has sent to page ports of `receiver`, and that have not arrived."""
    total = 0
    for line in sender.run(f"ss -Htn dst {receiver.ip}").splitlines():
        state, _, unsent, _, peer = line.split()[:5]
        port = int(peer.rpartition(":")[2])
        if state == "ESTAB" and 7300 <= port <= 7399 and port not in _grpc_ports(status, receiver):
            total += int(unsent)
    return total


def lanes_that_open(status: ClusterStatus, receiver: Host) -> set[PageLane]:
    """The page lanes that the landing of the decode worker there speaks: it answers a hello of such
    a lane, and hangs up on others."""
    (worker,) = [
        w for w in status.workers if host_of(w.endpoint) == receiver.ip and "decode" in w.roles
    ]
    page_bytes = FakeEngineConfig().page_bytes
    found = set()
    for port in _page_ports(status, receiver):
        for lane in PageLane:
            hello = Hello(1, worker.epoch, page_bytes, lane=lane).pack()
            with socket.create_connection((receiver.ip, port), timeout=20) as connection:
                connection.sendall(hello + bytes(NONCE_BYTES))
                if _length_of_answer(connection) >= 2 * NONCE_BYTES:  # its nonce and its proof
                    found.add(lane)
    return found


def _length_of_answer(connection: socket.socket) -> int:
    """At most what a landing answers to a hello; less if the other side hangs up."""
    n = 0
    with suppress(ConnectionResetError):
        while n < 2 * NONCE_BYTES and (part := connection.recv(2 * NONCE_BYTES - n)):
            n += len(part)
    return n


def _grpc_ports(status: ClusterStatus, host: Host) -> list[int]:
    endpoints = [w.endpoint for w in status.workers if host_of(w.endpoint) == host.ip]
    return [int(endpoint.rpartition(":")[2]) for endpoint in endpoints]


def _page_ports(status: ClusterStatus, host: Host) -> list[int]:
    """Metrics are on the loopback here, so what else listens brings pages."""
    lines = host.run("ss -Htln").splitlines()
    ours = [line.split()[3] for line in lines if line.split()[3].startswith(host.ip)]
    ports = [int(address.rpartition(":")[2]) for address in ours]
    return [p for p in ports if 7300 <= p <= 7399 and p not in _grpc_ports(status, host)]
