"""Addresses: who could dial what a server advertises, and ports out of a range."""

from __future__ import annotations

import socket

import pytest

from tests.ports import free_range
from twolane.rpc.listen import (
    ListenError,
    bind_port,
    host_of,
    is_loopback,
    is_unspecified,
    port_range,
    unreachable,
)

FAR = ("10.77.0.11:7201",)


@pytest.mark.parametrize(
    ("host", "loopback", "unspecified"),
    [
        ("127.0.0.1", True, False),
        ("127.9.9.9", True, False),
        ("localhost", True, False),
        ("::1", True, False),
        ("[::1]", True, False),
        ("0.0.0.0", False, True),
        ("::", False, True),
        ("10.77.0.11", False, False),
        ("", False, False),
    ],
)
def test_hosts_are_told_apart_by_who_can_dial_them(
    host: str, *, loopback: bool, unspecified: bool
) -> None:
    assert (is_loopback(host), is_unspecified(host)) == (loopback, unspecified)


def test_the_host_of_an_endpoint_has_no_brackets() -> None:
    assert [host_of(at) for at in ("1.2.3.4:5", "[::1]:5", "a.b:5")] == ["1.2.3.4", "::1", "a.b"]


@pytest.mark.parametrize(
    ("bind_host", "advertise_host", "dialled_by", "field"),
    [
        ("127.0.0.1", "", (), ""),
        ("127.0.0.1", "", ("127.0.0.1:1", "[::1]:2"), ""),
        ("10.77.0.12", "", FAR, ""),
        ("0.0.0.0", "10.77.0.12", FAR, ""),
        ("127.0.0.1", "10.77.0.12", FAR, ""),  # through a proxy
        ("127.0.0.1", "", FAR, "bind_host is 127.0.0.1"),
        ("127.0.0.1", "", ("127.0.0.1:1", *FAR), "bind_host is 127.0.0.1, and 10.77.0.11:7201"),
        ("0.0.0.0", "localhost", FAR, "advertise_host is localhost"),
        ("0.0.0.0", "", (), "advertise_host is not set"),
        ("::", "", (), "advertise_host is not set"),
        ("10.77.0.12", "0.0.0.0", (), "advertise_host is 0.0.0.0"),
    ],
)
def test_an_address_that_others_cannot_dial_is_refused_by_its_field(
    bind_host: str, advertise_host: str, dialled_by: tuple[str, ...], field: str
) -> None:
    why = unreachable(bind_host, advertise_host, dialled_by)
    assert bool(why) == bool(field)
    assert field in why


@pytest.mark.parametrize("text", ["7300", "7399-7300", "0-10", "a-b", "7300-70000", "-", ""])
def test_a_range_of_ports_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"ports is {text!r}"):
        port_range(text)


def _bind(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


def test_ports_come_from_the_range_until_it_is_used_up() -> None:
    ports = free_range(3)
    taken = [bind_port(_bind, "127.0.0.1", 0, "--port", ports) for _ in range(3)]
    try:
        assert {each.getsockname()[1] for each in taken} == {*port_range(ports)}
        with pytest.raises(ListenError, match=rf"every port of {ports} \(--ports\) is in use"):
            bind_port(_bind, "127.0.0.1", 0, "--port", ports)
    finally:
        for each in taken:
            each.close()


def test_a_port_that_another_process_takes_first_is_passed_over() -> None:
    ports = free_range(2)
    rivals: list[socket.socket] = []

    def bind(port: int) -> socket.socket:
        if not rivals:
            rivals.append(_bind(port))
        return _bind(port)

    ours = bind_port(bind, "127.0.0.1", 0, "--port", ports)
    try:
        assert ours.getsockname()[1] == port_range(ports)[1]
    finally:
        ours.close()
        rivals[0].close()


def test_a_port_that_is_given_need_not_be_of_the_range() -> None:
    with _bind(0) as held:
        port = held.getsockname()[1]
        with pytest.raises(ListenError, match=r"\(--port\): it is in use"):
            bind_port(_bind, "127.0.0.1", port, "--port", free_range(1))


def test_a_range_at_an_address_of_another_host_is_an_error_at_once() -> None:
    with pytest.raises(ListenError, match=r"192\.0\.2\.1 is not an address of this machine"):
        bind_port(
            lambda port: socket.create_server(("192.0.2.1", port)), "192.0.2.1", 0, "--port",
            "7300-7399",
        )  # fmt: skip
