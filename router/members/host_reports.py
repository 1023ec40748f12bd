"""The controller's latest report about the cluster's hosts, for the status."""

from __future__ import annotations

from collections.abc import Sequence

from twolane.v1 import cluster_pb2


class HostReports:
    """Keeps the latest report for `for_s`, as its controller may have ended after that. It reads no
    clock: the caller passes the time in seconds."""

    def __init__(self, for_s: float) -> None:
        self._for_s = for_s
        self._hosts: tuple[cluster_pb2.HostStatus, ...] = ()
        self._at = 0.0

    def note(
        self, hosts: Sequence[cluster_pb2.HostStatus], now: float
    ) -> list[cluster_pb2.HostStatus]:
        """Returns those that are in another state than before, or have lost others."""
        before = {host.name: (host.state, *host.lost) for host in self._hosts}
        self._hosts, self._at = tuple(hosts), now
        return [host for host in hosts if before.get(host.name) != (host.state, *host.lost)]

    def current(self, now: float) -> list[cluster_pb2.HostStatus]:
        """The hosts of the latest report, with times as of `now`; empty if it is too old."""
        found = []
        if now - self._at < self._for_s:
            for host in self._hosts:
                aged = cluster_pb2.HostStatus()
                aged.CopyFrom(host)
                aged.for_s += now - self._at
                found.append(aged)
        return found
