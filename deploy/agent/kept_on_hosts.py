"""Saves what a cluster is to be on all of its hosts, with the pods in which its workers run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import grpc

from twolane.deploy.agent.client import AgentClient
from twolane.deploy.agent.host_link import HostLink, HostState
from twolane.deploy.agent.term import Term
from twolane.deploy.controller.desired import Desired
from twolane.deploy.errors import RefusedError
from twolane.deploy.spec.spec_json import to_json
from twolane.v1 import agent_pb2

log = logging.getLogger(__name__)

Call = Callable[[HostLink, Callable[[AgentClient], Awaitable[Any]]], Awaitable[Any]]


class KeptOnHosts:
    """Of one controller. `call` makes a call to a host's agent; it raises AioRpcError."""

    def __init__(self, links: Mapping[str, HostLink], term: Term, call: Call) -> None:
        self._links = links
        self._term = term
        self._call = call
        self._desired: Desired | None = None
        self._n_saved = 0  # the order of saves: what is desired may be saved again with other pods
        self._saving = asyncio.Lock()

    def begin(self, desired: Desired | None, n_saved: int) -> None:
        """As the controller before has left it, with the pods where workers ran."""
        self._desired, self._n_saved = desired, n_saved
        for its in () if desired is None else desired.in_pods:
            if its.host in self._links:
                self._links[its.host].earlier.append(its)

    async def save(self, desired: Desired) -> None:
        """Raises `RefusedError` if no host has it, and `DeposedError`."""
        async with self._saving:
            await self._keep(self._with_pods(desired))
            self._desired = desired

    async def save_again(self) -> None:
        """Other pods have workers. If no host can keep it now, each does as soon as its agent
        answers. Raises `DeposedError`."""
        async with self._saving:
            if self._desired is not None:
                value = self._next(self._with_pods(self._desired))
                self._pass_on(value)
                if not await self._is_kept(value):
                    log.warning("no host has kept so far in which pods workers run")

    async def forget(self) -> None:
        """The next cluster begins as its topology says."""
        async with self._saving:
            self._desired = None
            if self._n_saved:
                with suppress(RefusedError):
                    await self._keep("")

    async def _keep(self, text: str) -> None:
        value = self._next(text)
        if not await self._is_kept(value):
            raise RefusedError("no host answers that could keep it for the next controller")
        self._pass_on(value)

    def _with_pods(self, desired: Desired) -> str:
        in_pods = tuple(its for link in self._links.values() for its in link.in_pods())
        return to_json(replace(desired, in_pods=in_pods))

    def _next(self, text: str) -> agent_pb2.Desired:
        self._n_saved += 1  # also of a save that fails: a host whose answer was lost may have it
        return agent_pb2.Desired(term=self._term.number, revision=self._n_saved, json=text)

    def _pass_on(self, value: agent_pb2.Desired) -> None:
        """Hosts that do not have it get it with the next message of their agent."""
        for link in self._links.values():
            link.desired = value

    async def _is_kept(self, value: agent_pb2.Desired) -> bool:
        """Whether at least one host has it."""
        links = [link for link in self._links.values() if link.state is HostState.UP]
        return any(await asyncio.gather(*(self._keep_on(link, value) for link in links)))

    async def _keep_on(self, link: HostLink, value: agent_pb2.Desired) -> bool:
        try:
            await self._call(link, partial(AgentClient.keep_desired, desired=value))
        except grpc.aio.AioRpcError as error:
            log.warning("%s: %s", link.host.name, error.details())
            return False
        link.kept = value
        return True
