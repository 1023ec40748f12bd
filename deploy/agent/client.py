"""A controller's client of one agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from twolane.deploy.agent.term import Term
from twolane.deploy.process.handshake import Handle
from twolane.deploy.spec.spec_json import to_json
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec
from twolane.security.credentials import Credentials
from twolane.security.identity import Role
from twolane.v1 import agent_pb2, agent_pb2_grpc

_CALL_S = 5.0


class AgentClient:
    """An async context manager around a channel. Every call raises `grpc.aio.AioRpcError`:
    UNAVAILABLE where nobody answers, FAILED_PRECONDITION where the term is over."""

    def __init__(self, endpoint: str, credentials: Credentials, term: Term) -> None:
        """Raises `TlsFilesError`."""
        self.endpoint = endpoint
        self._channel = credentials.channel(endpoint, Role.AGENT)
        self._stub = agent_pb2_grpc.AgentServiceStub(self._channel)
        self._metadata = credentials.metadata(endpoint)
        self._controller = agent_pb2.Controller(term=term.number, id=term.controller)

    async def describe(self, within_s: float = _CALL_S) -> agent_pb2.DescribeResponse:
        """What the host is and has. Takes no term."""
        request = agent_pb2.DescribeRequest()
        answer: agent_pb2.DescribeResponse
        answer = await self._stub.Describe(request, timeout=within_s, metadata=self._metadata)
        return answer

    async def start(self, spec: ProcessSpec) -> agent_pb2.StartResponse:
        """Returns when the process serves, or has failed to (`error`). Loading a model takes what
        it takes: there is no timeout, a dead agent shows by keepalive."""
        request = agent_pb2.StartRequest(controller=self._controller)
        if isinstance(spec, RouterSpec):
            request.router = to_json(spec)
        else:
            request.worker = to_json(spec)
        answer: agent_pb2.StartResponse
        answer = await self._stub.Start(request, metadata=self._metadata)
        return answer

    async def stop(self, handle: Handle, grace_s: float) -> None:
        """Returns when the process has ended."""
        request = agent_pb2.StopRequest(
            controller=self._controller, name=handle.name, pid=handle.pid, grace_s=grace_s
        )
        await self._stub.Stop(request, timeout=grace_s + _CALL_S, metadata=self._metadata)

    async def fence(
        self, name: str, *, epoch: int = 0, pid: int = 0, boot_id: str = ""
    ) -> agent_pb2.FenceResponse:
        """Kill that incarnation: of a worker by its epoch (then the name may be empty), of a router
        by its pid."""
        request = agent_pb2.FenceRequest(
            controller=self._controller, name=name, epoch=epoch, pid=pid, boot_id=boot_id
        )
        answer: agent_pb2.FenceResponse
        answer = await self._stub.Fence(request, timeout=_CALL_S, metadata=self._metadata)
        return answer

    async def watch(self) -> AsyncIterator[agent_pb2.WatchResponse]:
        """At least one message a second while the agent is there."""
        request = agent_pb2.WatchRequest(controller=self._controller)
        async for message in self._stub.Watch(request, metadata=self._metadata):
            yield message

    async def close(self) -> None:
        """Calls that run end with CANCELLED."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def handle_of_process(process: agent_pb2.HostProcess, host_name: str) -> Handle:
    """The launcher's record of a process on that host."""
    its = process.listeners
    return Handle(
        name=process.name,
        epoch=process.epoch,
        endpoint=its.grpc,
        metrics_endpoint=its.metrics,
        pid=process.pid,
        worker_endpoint=its.workers,
        runs_on=process.runs_on,
        http_endpoint=its.http,
        admin_endpoint=its.admin,
        host_name=host_name,
    )
