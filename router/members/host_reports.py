"""The controller's latest report about the cluster's hosts, for the status."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from twolane.v1 import cluster_pb2

_NOT_SEEN = cluster_pb2.HostStatus()


class HostEvent(NamedTuple):
    """What has become of a host, for `EventLog.note`."""

    kind: str
    host: str
    text: str


class HostReports:
    """Keeps the latest report for `for_s`, as its controller may have ended after that. It reads no
    clock: the caller passes the time in seconds."""

    def __init__(self, for_s: float) -> None:
        self._for_s = for_s
        self._hosts: tuple[cluster_pb2.HostStatus, ...] = ()
        self._at = 0.0

    def note(self, hosts: Sequence[cluster_pb2.HostStatus], now: float) -> list[HostEvent]:
        """Returns what is new: hosts in another state than before, and workers lost with a pod."""
        before = {host.name: host for host in self._hosts}
        self._hosts, self._at = tuple(hosts), now
        return [event for host in hosts for event in _news(host, before.get(host.name, _NOT_SEEN))]

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


def _news(host: cluster_pb2.HostStatus, before: cluster_pb2.HostStatus) -> Iterator[HostEvent]:
    name = host.name
    if host.state != before.state:
        text = f"host {name} is {host.state}{': ' if host.note else ''}{host.note}"
        yield HostEvent(f"host.{host.state}", name, text)
    if gone := ", ".join(sorted({*host.lost} - {*before.lost})):
        yield HostEvent("host.lost", name, f"host {name} has lost {gone} with an earlier pod")
