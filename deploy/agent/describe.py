"""Asks the agents of hosts what is there: before a controller takes over, and for an operator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

import grpc

from twolane.deploy.agent.client import AgentClient
from twolane.deploy.agent.host_link import HostLink, HostState, LinkConfig
from twolane.deploy.agent.term import Term
from twolane.deploy.errors import RefusedError, StartError
from twolane.deploy.spec.cluster_spec import HostSpec
from twolane.security.credentials import Credentials
from twolane.v1 import acts_pb2, agent_pb2

log = logging.getLogger(__name__)

_ASK_AGAIN_S = 1.0


async def describe_all(
    hosts: Sequence[HostSpec], credentials: Credentials, config: LinkConfig
) -> dict[str, agent_pb2.DescribeResponse]:
    """The hosts that answer, by name. While none of these knows what is desired, a silent one may.
    Raises `StartError`."""
    found: dict[str, agent_pb2.DescribeResponse] = {}
    clock = asyncio.get_running_loop().time
    until_s = clock() + config.remember_s
    while True:
        silent = [host for host in hosts if host.name not in found]
        answers = await asyncio.gather(*(_describe(host, credentials, config) for host in silent))
        found |= {host.name: its for host, its in zip(silent, answers, strict=True) if its}
        is_known = any(its.HasField("desired") for its in found.values())
        if not found or is_known or len(found) == len(hosts) or clock() >= until_s:
            return found
        await asyncio.sleep(_ASK_AGAIN_S)


async def _describe(
    host: HostSpec, credentials: Credentials, config: LinkConfig
) -> agent_pb2.DescribeResponse | None:
    """The host's description; None if it does not answer in time. Raises `StartError` if the agent
    refuses us."""
    async with AgentClient(host.agent, credentials, Term(0, "")) as client:
        try:
            return await client.describe(within_s=config.connect_s)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return None
            raise StartError(f"the agent at {host.agent}: {error.details()}") from error


async def read_latest_log(
    links: Mapping[str, HostLink], request: acts_pb2.ReadLogRequest
) -> acts_pb2.ReadLogResponse:
    """See `twolane.deploy.launch.launcher.Launcher.read_log`. Of several hosts that have run the
    process, the one where it has logged last answers."""
    up = [link for link in links.values() if link.state is HostState.UP]
    answers = await asyncio.gather(*(_read_log(link, request) for link in up))
    whys = [answer for answer in answers if isinstance(answer, str)]
    found = [its for its in answers if not isinstance(its, str) and its.HasField("log")]
    if not found:
        silent = [link.host.name for link in links.values() if link not in up]
        whys += [f"silent: {', '.join(silent)}"] * bool(silent)
        also = f" ({'; '.join(whys)})" if whys else ""
        raise RefusedError(f"no host that answers has a log of {request.name}{also}")
    return min(found, key=lambda answer: answer.age_s).log


async def _read_log(
    link: HostLink, request: acts_pb2.ReadLogRequest
) -> agent_pb2.ReadHostLogResponse | str:
    """The agent's answer, or why there is none."""
    try:
        async with link.client() as client:
            return await client.read_log(request)
    except grpc.aio.AioRpcError as error:
        why = f"{link.host.name}: {error.details()}"
        log.warning("%s", why)
        return why
