"""What a controller tells of the cluster's hosts, for those who ask for the status."""

from __future__ import annotations

from collections.abc import Sequence

from twolane.v1 import cluster_pb2


class HostReports:
    """The latest one counts, for as long as its controller may be there. No clock here: `now` is
    given, in seconds."""

    def __init__(self, for_s: float) -> None:
        self._for_s = for_s
        self._hosts: tuple[cluster_pb2.HostStatus, ...] = ()
        self._at = 0.0

    def note(self, hosts: Sequence[cluster_pb2.HostStatus], now: float) -> None:
        self._hosts, self._at = tuple(hosts), now

    def current(self, now: float) -> list[cluster_pb2.HostStatus]:
        """With the times of now."""
        found = []
        if now - self._at < self._for_s:
            for host in self._hosts:
                aged = cluster_pb2.HostStatus()
                aged.CopyFrom(host)
                aged.for_s += now - self._at
                found.append(aged)
        return found
