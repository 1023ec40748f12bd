"""Ports that tests choose before anything listens are nobody else's."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.ports import free_ports, router_ports

OTHER = "from tests.ports import free_ports; print(*free_ports(9), flush=True); input()"


def test_processes_of_tests_have_ports_of_their_own() -> None:
    ours = free_ports(9)
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = [int(port) for port in other.stdout.readline().split()]
        assert len({*ours, *theirs}) == 18
        other.communicate("\n")


def test_a_port_is_not_given_again_soon_and_never_while_it_is_in_use() -> None:
    ours = [port for _ in range(9) for port in free_ports(3)]
    assert len({*ours}) == 27
    with socket.create_server(("127.0.0.1", ours[0])):
        assert all(ours[0] not in free_ports(3) for _ in range(200))


def test_no_other_listener_gets_a_port_of_several_routers_on_a_host() -> None:
    own = {port + 10 * i for port in router_ports(3).values() for i in range(3)}
    assert len(own) == 12
    assert own.isdisjoint(free_ports(9))
    given_by_the_kernel = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert max(own) < int(given_by_the_kernel[0])
