"""Refuses unsafe page transfers: over networks without checksums, or unprotected beyond this
host."""

from __future__ import annotations

from twolane.kvtransfer.page_lane import PageLane
from twolane.kvtransfer.transport_names import ONE_HOST_ONLY
from twolane.rpc.listen import is_loopback


def unsummed(transports: tuple[str, ...], checksums: bool | None) -> str:
    """Why pages may not use these transports without checksums; empty if they may or have some."""
    far = ", ".join(name for name in transports if name not in ONE_HOST_ONLY)
    if checksums is not False or not far:
        return ""
    return (
        f"pages are always summed over networks ({far}): leave checksums on, or pin transports "
        "of one host (cuda_ipc, shm, unix)"
    )


def page_lane_of(given: str | None, bind_host: str, *, has_tls: bool, insecure: bool) -> PageLane:
    """The protection of a worker's page connections. The default is `plain` on the loopback, and in
    a cluster that runs without TLS on purpose, where a key could be read on the wire as well;
    otherwise it is `encrypted`."""
    if given is not None:
        return PageLane(given)
    is_open = is_loopback(bind_host) or (insecure and not has_tls)
    return PageLane.PLAIN if is_open else PageLane.ENCRYPTED


def unprotected(
    transports: tuple[str, ...],
    page_lane: str | None,
    bind_host: str,
    *,
    trusted_fabric: bool,
    insecure: bool,
) -> tuple[str, str]:
    """The field that exposes pages beyond this host, and why; empty strings if none does."""
    if is_loopback(bind_host):
        return "", ""
    if page_lane == PageLane.PLAIN and "tcp" in transports and not insecure:
        return (
            "page_lane",
            f"page_lane is plain, and others could read and write pages at {bind_host}: leave it "
            "out (encrypted), or take keyed on a private network, or add --insecure",
        )
    if transports == ("nixl",) and not trusted_fabric:
        return (
            "trusted_fabric",
            "nixl sends pages unencrypted between hosts: add tcp to the transports, or set "
            "trusted_fabric (--trusted-fabric) where nobody else is on that network",
        )
    return "", ""
