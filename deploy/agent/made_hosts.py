"""Hosts that come when a worker has a seat on them, and go when none has.

    what is desired ──▶ `wanted` ──▶ an executor asks Ray or Kubernetes for them
                                          │
    links to agents ◀── `came`, `left` ◀──┘   what runs there is known from agents alone

A host has a worker as long as that worker's end is not proven, so an executor that keeps what is
wanted removes no worker.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from twolane.deploy.agent.host_link import HostLink, HostState
from twolane.deploy.controller.desired import Desired, InPod
from twolane.deploy.spec.cluster_spec import HostSpec
from twolane.deploy.spec.specs import ProcessSpec
from twolane.rpc.listen import bare, host_of


class MadeHosts:
    """Those of `links` that come and go. `declared_dead` gets the epochs that an executor has
    proven dead."""

    def __init__(self, links: Mapping[str, HostLink], declared_dead: dict[int, str]) -> None:
        self._links = {name: link for name, link in links.items() if link.host.made is not None}
        self._declared_dead = declared_dead
        self.wanted: frozenset[str] | None = None  # None: not known so far
        self.changed = asyncio.Event()  # set when others are wanted; the executor clears it
        self.counters: Counter[str] = Counter()  # of the executor, for metrics
        self.earlier: list[InPod] = []  # what an earlier controller has known

    def take_over(self, desired: Desired | None, answering: Collection[str] = ()) -> None:
        """What an earlier controller wanted may run, wherever it is not heard. If it is not known
        what it wanted, that is everywhere but on the hosts `answering`."""
        if desired is None:
            hosts = {name for name, link in self._links.items() if link.host.agent}
            hosts.difference_update(answering)
        else:
            hosts = {seat.host for seat in desired.seats}
            self.earlier = [its for its in desired.in_pods if its.host in self._links]
        for name in hosts & self._links.keys():
            self._links[name].may_run = True

    def want(self, hosts: Collection[str]) -> None:
        """These have a seat that is taken. One where something runs, or may run, stays too."""
        used = {name for name, link in self._links.items() if link.live or link.may_run}
        wanted = frozenset({*hosts, *used}) & self._links.keys()
        if wanted != self.wanted:
            self.wanted = wanted
            self.changed.set()

    @property
    def is_deposed(self) -> bool:
        """Another controller has taken over."""
        return any(link.is_deposed for link in self._links.values())

    def hosts(self) -> dict[str, HostSpec]:
        """Each as it is now, by name."""
        return {name: link.host for name, link in self._links.items()}

    def state(self, name: str) -> HostState:
        return self._links[name].state

    def came(self, name: str, agent: str, boot_id: str = "", node: str = "") -> None:
        """Its agent serves at `agent`, host:port; of a pod, its UID and its node. May be called
        again."""
        link = self._links[name]
        link.nodes[boot_id] = node
        if link.host.agent != agent:
            link.moved(replace(link.host, agent=agent, bind_host=bare(host_of(agent))))

    def left(self, name: str) -> None:
        """It is not there, which proves nothing of what ran on it. May be called again."""
        link = self._links[name]
        if link.host.agent:
            link.moved(replace(link.host, agent="", bind_host=""))

    def ended(self, name: str, boot_id: str, how: str, proof_class: str) -> None:
        """It is proven that nothing of that boot of the host runs any more."""
        for epoch in self._links[name].boot_ended(boot_id, how, proof_class):
            self._declared_dead[epoch] = name


def addressed(spec: ProcessSpec, host: HostSpec) -> ProcessSpec:
    """The process listens where the host is, if that was not known before it came."""
    if host.made is None:
        return spec
    return replace(spec, bind_host=host.bind_host, advertise_host=host.advertise_host)
