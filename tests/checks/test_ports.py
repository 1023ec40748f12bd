"""Ports that tests choose before anything listens are nobody else's."""

from __future__ import annotations

import socket
import subprocess
import sys

from tests.ports import free_ports

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
