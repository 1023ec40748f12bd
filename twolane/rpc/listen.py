"""Addresses to listen at: spellings of host:port, port ranges, why a server cannot listen at one,
and whether others can dial it."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

BoundT = TypeVar("BoundT")

MAX_PORT = 65535
IN_USE = "it is in use"


class ListenError(Exception):
    """A server cannot listen at an address. The text has the address, the option that set it, and
    the reason."""


def bare(host: str) -> str:
    """The host without brackets: `::1` for `[::1]` and for `::1`."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def join(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 address: `127.0.0.1:80`, `[::1]:80`."""
    host = bare(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(endpoint: str) -> str:
    """The host of host:port: `127.0.0.1` for `127.0.0.1:80`, `::1` for `[::1]:80`."""
    return bare(endpoint.rpartition(":")[0])


def is_loopback(host: str) -> bool:
    """Whether only processes of the same host can dial it. A name is resolved; a name that does not
    resolve is not the loopback."""
    return _are(host, lambda address: address.is_loopback)


def is_local(host: str) -> bool:
    """Whether only this machine can reach a listener at `host`, which may be unix:PATH. Names other
    than localhost are not resolved and count as reachable by others."""
    if host.startswith("unix:") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare(host)).is_loopback
    except ValueError:
        return False


def is_unspecified(host: str) -> bool:
    """Whether it is 0.0.0.0 or ::, at which a server listens on all addresses, but which cannot be
    dialled."""
    return _are(host, lambda address: address.is_unspecified)


def unreachable(bind_host: str, advertise_host: str, dialled_by: Iterable[str]) -> str:
    """Why others could not dial a server that listens at `bind_host` and advertises
    `advertise_host` (empty: `bind_host`); empty if they can. `dialled_by` are the endpoints of
    those others: one that is not on the loopback may be on another host."""
    host = advertise_host or bind_host
    if is_unspecified(host):
        return (
            f"bind_host is {bind_host} and advertise_host is {advertise_host or 'not set'}: others "
            "cannot dial that; set advertise_host (--advertise-host) to an address of this host"
        )
    far = next((other for other in dialled_by if not is_loopback(host_of(other))), None)
    if far is None or not is_loopback(host):
        return ""
    field = "advertise_host" if advertise_host else "bind_host"
    return (
        f"{field} is {host}, and {far} may be on another host, from where it cannot be dialled: "
        f"set bind_host (--bind-host), or advertise_host, to an address of this host"
    )


def port_range(text: str, name: str = "ports") -> range:
    """Parse the option `name`, a range of ports like `7300-7399`, ends included. Raises
    ValueError."""
    first, dash, last = text.partition("-")
    if not (dash and first.strip().isdecimal() and last.strip().isdecimal()):
        raise ValueError(f"{name} is {text!r}; it must name the first and the last, like 7300-7399")
    ports = range(int(first), int(last) + 1)
    if not ports or not ports.start or ports[-1] > MAX_PORT:
        raise ValueError(
            f"{name} is {text!r}; the first is at least 1, the last not before it and at most "
            f"{MAX_PORT}"
        )
    return ports


def bind_port(
    bind: Callable[[int], BoundT],
    host: str,
    port: int,
    option: str,
    ports: str = "",
    ports_option: str = "--ports",
) -> BoundT:
    """Call `bind`, which opens a listener at a port of `host`, and return its result.

    It is called with `port`, which `option` sets; if that is 0 and `ports_option` sets a range
    `ports`, with the first free port of the range. Raises `ListenError`, also if no port of
    the range is free.
    """
    if port or not ports:
        with listening(host, port, option):
            return bind(port)
    for candidate in port_range(ports):
        with listening(host, candidate, ports_option):
            if try_listen(host, candidate) == IN_USE:
                continue
            try:
                return bind(candidate)
            except (RuntimeError, OSError):
                if try_listen(host, candidate) != IN_USE:  # else another process was faster
                    raise
    raise ListenError(
        f"cannot listen on {bare(host)}: every port of {ports} ({ports_option}) is in use; give "
        "this host a larger range"
    )


@contextmanager
def listening(host: str, port: int, option: str) -> Iterator[None]:
    """A block that binds a socket: gRPC's RuntimeError and OSErrors become a `ListenError`."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        why = try_listen(host, port) or str(error)
        raise ListenError(f"cannot listen on {join(host, port)} ({option}): {why}") from error


def try_listen(host: str, port: int, *, shares: bool = False) -> str:
    """Why no server could listen there now; empty if one can. With `shares`, other processes of
    this user may already listen there, if they share the port as well."""
    try:
        found = socket.getaddrinfo(bare(host), port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if shares:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                probe.bind(address)
                if not shares:  # a socket that shares the port would receive connections meanwhile
                    probe.listen()
    except socket.gaierror as error:
        return f"{bare(host)} is not an address: {error.strerror}"
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return IN_USE
        if error.errno == errno.EADDRNOTAVAIL:
            return f"{bare(host)} is not an address of this machine"
        return error.strerror or str(error)
    return ""


Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _are(host: str, test: Callable[[Address], bool]) -> bool:
    """Whether the host has addresses and all of them pass the test."""
    if not host:  # getaddrinfo would return the loopback
        return False
    try:
        found = socket.getaddrinfo(bare(host), None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        return False
    addresses = (str(at[4][0]).partition("%")[0] for at in found)
    return bool(found) and all(test(ipaddress.ip_address(address)) for address in addresses)
