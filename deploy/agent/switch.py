"""Switches silent hosts off: the one proof of death that needs no answer of the host (class C)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import grpc

from twolane.deploy.agent.ended import CLASS_C
from twolane.deploy.agent.fence_command import run_fence_command
from twolane.deploy.agent.host_link import HostLink, HostState, LinkConfig
from twolane.deploy.errors import NotProvenError

log = logging.getLogger(__name__)

_NOW_S = 3.0  # timeout of a host that an operator has declared off: one that stalls is not off
_SILENCE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class Switch:
    """The switches of one controller's hosts, by name."""

    def __init__(self, links: Mapping[str, HostLink], config: LinkConfig) -> None:
        self._links = links
        self._config = config
        self._switching = {name: asyncio.Lock() for name in links}
        self.declared_dead: dict[int, str] = {}  # epochs that no agent reports, and their hosts

    async def believe(self, host_name: str) -> str:
        """Record an operator's statement that the host is off. Returns the proof in words. Raises
        `NotProvenError` if the host still answers, because its agent can prove deaths itself. A pod
        cannot prove those in earlier pods of its name: then the statement is about these."""
        link = self._links.get(host_name)
        if link is None:
            raise NotProvenError(f"there is no host {host_name}, but {', '.join(self._links)}")
        boot_id = await _boot_of(link) if link.state is HostState.UP else ""
        if boot_id:  # guard: a host that answers
            if not await link.until_boot(boot_id):  # guard: a host that was made anew
                raise NotProvenError(f"{host_name} has just come back: ask again")
            if not link.lost_pods:
                raise NotProvenError(f"{host_name} answers: fence its workers through its agent")
            how = "its pod is off, according to an operator"
            for boot_id in list(link.lost_pods):
                for epoch in link.boot_ended(boot_id, how, CLASS_C):
                    self.declared_dead[epoch] = host_name
            return f"earlier pods of the name {host_name} are off: proof of class C"
        self._note_off(link, "its host is off, according to an operator")
        return f"{host_name} is off: proof of class C"

    async def off(self, link: HostLink) -> None:
        """Switch the host off with its fence command. Raises `NotProvenError`."""
        host = link.host
        async with self._switching[host.name]:
            if link.state is HostState.OFF:
                return
            if not host.fence_command:
                raise NotProvenError(
                    f"{host.name} silent; no fence command: if you have seen that it is off, say "
                    f"twolane fence --host {host.name} --i-saw-it-off"
                )
            code = await run_fence_command(host, self._config.fence_command_s)
            if code:  # guard: fence command
                raise NotProvenError(f"{host.name} silent; its fence command exited with {code}")
            self._note_off(link, "its host was switched off by the fence command")

    def _note_off(self, link: HostLink, how: str) -> None:
        log.warning("%s: %s", link.host.name, how)
        for epoch in link.switched_off(how):
            self.declared_dead[epoch] = link.host.name


async def _boot_of(link: HostLink) -> str:
    """The id of the host's boot if it answers right now, empty if it is silent. Its state still
    says up for some seconds after it went off. Raises `NotProvenError` for another error."""
    try:
        async with link.client() as client:
            return (await client.describe(within_s=_NOW_S)).boot_id
    except grpc.aio.AioRpcError as error:
        if error.code() not in _SILENCE:  # guard: a host that answers with an error
            text = error.details() or error.code().name
            raise NotProvenError(f"{link.host.name} answers: {text}") from error
        return ""
