"""Ends what runs on the hosts of a cluster, and says what may still run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

import grpc

from twolane.deploy.agent.client import handle_of_process
from twolane.deploy.agent.host_link import HostLink, HostState
from twolane.deploy.errors import DeposedError, NotProvenError, StartError, first_error
from twolane.deploy.process.handshake import Handle
from twolane.v1 import agent_pb2

log = logging.getLogger(__name__)

_REPORTED_S = 5.0  # an agent that has ended a process reports it within that

Stop = Callable[[HostLink, Handle], Awaitable[None]]


async def end_processes(
    links: Collection[HostLink], names: Collection[str], stop: Stop
) -> dict[str, str]:
    """End what hosts that answer run, but for `names`: routers first, so that running answers end,
    and also what shows up meanwhile. `stop` raises AioRpcError, and `DeposedError`. Returns why
    those are left that could not be ended."""
    unproven: dict[str, str] = {}

    def to_end(*, routers: bool) -> list[tuple[HostLink, agent_pb2.HostProcess]]:
        return [
            (link, its)
            for link in links
            if link.state is HostState.UP
            for its in link.live.values()
            if its.name not in names and its.name not in unproven and (its.epoch == 0) is routers
        ]

    async def end(link: HostLink, process: agent_pb2.HostProcess) -> None:
        handle = handle_of_process(process, link.host.name)
        try:
            await stop(link, handle)
            async with asyncio.timeout(_REPORTED_S):
                while link.live.get(process.name) == process and link.state is HostState.UP:
                    await link.changed.wait()
        except grpc.aio.AioRpcError as error:
            unproven[process.name] = f"{link.host.name}: {error.details() or error.code().name}"
        except TimeoutError:
            unproven[process.name] = f"{link.host.name} still reports it"

    try:
        while found := (to_end(routers=True) or to_end(routers=False)):
            async with asyncio.TaskGroup() as tasks:
                for link, process in found:
                    tasks.create_task(end(link, process))
    except* DeposedError as errors:
        raise first_error(errors) from None
    return unproven


async def fence_host(
    link: HostLink, handles: Mapping[str, Handle], fence: Callable[[Handle], Awaitable[None]]
) -> None:
    """Fence those of `handles` that run on the link's host. If the host is silent and could not be
    switched off for one of them, that is not tried again for the others."""
    left = [its for its in handles.values() if its.host_name == link.host.name]
    while left:
        try:
            await fence(left[0])
        except DeposedError:
            return
        except NotProvenError as error:
            if link.state is not HostState.UP:
                log.warning("%s may still run: %s", ", ".join(its.name for its in left), error)
                return
            log.warning("%s may still run: %s", left[0].name, error)
        del left[0]


async def end_elsewhere(
    links: Collection[HostLink],
    name: str,
    here: HostLink,
    fence: Callable[[Handle], Awaitable[None]],
) -> None:
    """End an incarnation on another host first: there is one at a time. Raises `StartError`."""
    for link in links:
        process = link.live.get(name)
        if process is None or link is here:
            continue
        try:
            await fence(handle_of_process(process, link.host.name))
        except NotProvenError as error:
            raise StartError(f"{name} may still run: {error}") from error


def may_still_run(links: Mapping[str, HostLink], handles: Collection[Handle]) -> str:
    """What has no proof of its end, by host, up or silent: of `handles`, of starts without an
    outcome, and of what the host has last reported. Empty if all has ended."""
    told = []
    for name, link in links.items():
        if link.state in (HostState.OFF, HostState.AWAY):
            continue
        here = [its for its in handles if its.host_name == name]
        left = {its.name for its in here if not link.end_of(its).done()}
        left |= {*link.unknown} | {*link.live}
        if left or not link.has_been_heard:
            what = ", ".join(sorted(left)) or "what ran there before"
            told.append(f"{what} may still run on {name}, which is {link.state}")
    return "; ".join(told)
