"""Who counts as one peer where connections are bounded by peer."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network


def peer_of(host: str) -> str:
    """The unit in which connections are counted: an IPv4 address, or an IPv6 /64 network. Empty for
    the loopback, where a proxy may act for many clients."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return ""  # a Unix socket
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_loopback:
        return ""
    if isinstance(address, IPv6Address):
        return str(ip_network((address, 64), strict=False))
    return str(address)
