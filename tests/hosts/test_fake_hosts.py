"""The fake hosts themselves: what they share, what they do not, and what faults do."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hosts.fake_hosts import Host, Network
from tests.hosts.ray_hosts import wait_until
from twolane.kvtransfer.transports.common.tcp_silence import is_mute

# answers each line of each connection with the same line
ECHO = """
import asyncio
async def answer(reader, writer):
    while line := await reader.readline():
        writer.write(line)
async def main():
    async with await asyncio.start_server(answer, "0.0.0.0", 7300) as server:
        await server.serve_forever()
asyncio.run(main())
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def echo(host: Host, log: Path) -> subprocess.Popen[bytes]:
    (host.root / "tmp/echo.py").write_text(ECHO)
    process = host.bg(f"{sys.executable} /tmp/echo.py", log)
    wait_until(lambda: answers(host))
    return process


def answers(host: Host, *, within_s: float = 20.0) -> bool:
    """As seen from here."""
    try:
        with socket.create_connection((host.ip, 7300), timeout=within_s) as connection:
            connection.sendall(b"x\n")
            return connection.recv(2) == b"x\n"
    except OSError:
        return False


def reaches(sender: Host, receiver: Host, *, within_s: float = 20.0) -> bool:
    """Whether a connection comes about."""
    to, n = f"('{receiver.ip}', 7300)", within_s
    connect = f"import socket; socket.create_connection({to}, timeout={n}).close()"
    try:
        sender.run(f'{sys.executable} -S -c "{connect}"')
    except subprocess.CalledProcessError:
        return False
    return True


def test_hosts_share_a_network_and_nothing_else(network: Network) -> None:
    a, b = network.host("a"), network.host("b")
    seen = {
        host: host.run(
            "hostname; cat /proc/sys/kernel/random/boot_id; readlink /proc/self/ns/pid; "
            "touch /tmp/here /dev/shm/here; ls /tmp /dev/shm | wc -l; ps -e --no-headers | wc -l"
        ).split()
        for host in (a, b)
    }
    assert [lines[0] for lines in seen.values()] == ["a", "b"]
    for one, other in zip(seen[a][:3], seen[b][:3], strict=True):
        assert one != other
    assert seen[a][3] == seen[b][3]
    assert int(seen[a][4]) < 8
    assert (a.root / "tmp/here").exists()
    assert not Path("/tmp/here").exists()


def test_a_cut_link_is_cut_for_those_two_alone_and_heals(network: Network, log: Path) -> None:
    a, b, c = (network.host(name) for name in "abc")
    for host in (a, b):
        echo(host, log)
    assert reaches(a, b)
    assert reaches(b, a)
    network.cut(a, b)
    assert not reaches(a, b, within_s=1.2)
    assert not reaches(b, a, within_s=1.2)
    assert reaches(c, b)
    assert answers(a)
    assert answers(b)
    network.heal()
    assert reaches(a, b)


def test_a_link_that_is_cut_one_way_still_carries_what_goes_the_other(
    network: Network, log: Path
) -> None:
    a, b = network.host("a"), network.host("b")
    counter = "nft list chain inet faults input"
    b.run("nft insert rule inet faults input tcp dport 7300 counter")
    network.cut_one_way(b, a)
    echo(b, log)
    before = b.run(counter)
    assert not reaches(a, b, within_s=1.2), "what b answers is lost"
    assert b.run(counter) != before, "what a says arrives"


def test_loss_loses_some_packets(network: Network) -> None:
    a, b = network.host("a"), network.host("b")
    # Nobody listens; each knows the other's address then, so that no packet waits for it.
    assert not reaches(a, b)
    network.loss(a, b, 30)
    b.run("nft add rule inet faults input ip protocol udp counter")
    a.run(
        f'{sys.executable} -S -c "import socket; s = socket.socket(type=socket.SOCK_DGRAM); '
        f"[s.sendto(b'x', ('{b.ip}', 7300)) for _ in range(1000)]\""
    )

    def n_arrived() -> int:
        found = re.search(r"counter packets (\d+)", b.run("nft list chain inet faults input"))
        assert found is not None
        return int(found[1])

    wait_until(lambda: n_arrived() > 600)  # the last may still be on their way
    assert n_arrived() < 800


def test_a_connection_is_mute_when_packets_get_lost_and_not_when_nobody_reads(
    network: Network, log: Path
) -> None:
    host = network.host("a")
    echo(host, log)
    with socket.create_connection((host.ip, 7300)) as connection:
        connection.setblocking(False)
        host.freeze()
        end_s = time.monotonic() + 3
        while time.monotonic() < end_s:  # for longer than it takes below
            with contextlib.suppress(BlockingIOError):
                connection.send(b"x" * 65536)
            assert not is_mute(connection)
        host.thaw()
    with socket.create_connection((host.ip, 7300)) as connection:
        assert not is_mute(connection)
        host.run("nft insert rule inet faults input tcp dport 7300 drop")
        connection.sendall(b"x\n")
        wait_until(lambda: is_mute(connection))


def test_a_frozen_host_says_nothing_until_it_thaws(network: Network, log: Path) -> None:
    host = network.host("a")
    echo(host, log)
    host.freeze()
    assert not answers(host, within_s=0.3)
    host.thaw()
    assert answers(host)


def test_a_host_that_is_killed_leaves_no_process(network: Network, log: Path) -> None:
    host = network.host("a")
    echo(host, log)
    host.run("setsid sleep 1000 > /dev/null 2>&1 &")
    pids = host.pids()
    assert len(pids) >= 2
    host.kill()
    for pid in pids:
        assert not os.path.exists(f"/proc/{pid}/cwd")
