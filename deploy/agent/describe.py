"""Asks the agents of hosts what is there, before a controller takes over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc

from twolane.deploy.agent.client import AgentClient
from twolane.deploy.agent.host_link import LinkConfig
from twolane.deploy.agent.term import Term
from twolane.deploy.errors import StartError
from twolane.deploy.spec.cluster_spec import HostSpec
from twolane.security.credentials import Credentials
from twolane.v1 import agent_pb2

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
