"""A controller's client of one agent."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

import grpc

from twolane.deploy.agent.config import START_S
from twolane.deploy.agent.term import Term
from twolane.deploy.process.handshake import Handle
from twolane.deploy.spec.spec_json import to_json
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec
from twolane.security.credentials import Credentials
from twolane.security.identity import Role
from twolane.security.tls import TlsFilesError
from twolane.v1 import acts_pb2, agent_pb2, agent_pb2_grpc

log = logging.getLogger(__name__)

_CALL_S = 5.0
# Of a revision's files: the agent ends it sooner (`twolane.deploy.spec.revision`), and the operator
# waits for 600 s.
READ_S = 560.0
_MARGIN_S = 60.0  # of a start: the agent kills what does not serve in time


class AgentClient:
    """An async context manager around a channel. Calls raise `grpc.aio.AioRpcError`: UNAVAILABLE if
    there is no answer, FAILED_PRECONDITION if the agent has seen a higher term."""

    def __init__(self, endpoint: str, credentials: Credentials, term: Term) -> None:
        """Raises AioRpcError INTERNAL if our files of TLS cannot be read now: that is no silence of
        the agent."""
        self.endpoint = endpoint
        try:
            self._channel = credentials.channel(endpoint, Role.AGENT)
        except TlsFilesError as error:  # they are being replaced, or no descriptor is free
            log.error("%s: %s", endpoint, error)
            code, none = grpc.StatusCode.INTERNAL, grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(code, none, none, str(error)) from error
        self._stub = agent_pb2_grpc.AgentServiceStub(self._channel)
        self._metadata = credentials.metadata(endpoint)
        self._controller = agent_pb2.Controller(term=term.number, id=term.controller)

    async def describe(self, within_s: float = _CALL_S) -> agent_pb2.DescribeResponse:
        """Describe the host and its GPUs. Any term may ask."""
        request = agent_pb2.DescribeRequest()
        answer: agent_pb2.DescribeResponse
        answer = await self._stub.Describe(request, timeout=within_s, metadata=self._metadata)
        return answer

    async def start(self, spec: ProcessSpec) -> agent_pb2.StartResponse:
        """Start a process. Returns when it serves or has failed to start (`error`). The agent
        bounds that; the timeout here is for an agent that hangs."""
        request = agent_pb2.StartRequest(controller=self._controller)
        if isinstance(spec, RouterSpec):
            request.router = to_json(spec)
        else:
            request.worker = to_json(spec)
        answer: agent_pb2.StartResponse
        within_s = START_S + _MARGIN_S
        answer = await self._stub.Start(request, timeout=within_s, metadata=self._metadata)
        return answer

    async def stop(self, handle: Handle, grace_s: float) -> None:
        """Stop a process. Returns when it has ended."""
        request = agent_pb2.StopRequest(
            controller=self._controller, name=handle.name, pid=handle.pid, grace_s=grace_s
        )
        await self._stub.Stop(request, timeout=grace_s + _CALL_S, metadata=self._metadata)

    async def fence(
        self, name: str, *, epoch: int = 0, pid: int = 0, boot_id: str = ""
    ) -> agent_pb2.FenceResponse:
        """Kill an incarnation: a worker's by its epoch (the name may be empty), a router's by its
        pid, or whatever runs or starts of its name (no pid)."""
        request = agent_pb2.FenceRequest(
            controller=self._controller, name=name, epoch=epoch, pid=pid, boot_id=boot_id
        )
        answer: agent_pb2.FenceResponse
        answer = await self._stub.Fence(request, timeout=_CALL_S, metadata=self._metadata)
        return answer

    async def keep_desired(self, desired: agent_pb2.Desired) -> None:
        """It is on the host's disk on return."""
        request = agent_pb2.KeepDesiredRequest(controller=self._controller, desired=desired)
        await self._stub.KeepDesired(request, timeout=_CALL_S, metadata=self._metadata)

    async def read_log(self, request: acts_pb2.ReadLogRequest) -> agent_pb2.ReadHostLogResponse:
        """Read a log file. Any term may ask."""
        answer: agent_pb2.ReadHostLogResponse
        answer = await self._stub.ReadHostLog(
            agent_pb2.ReadHostLogRequest(log=request), timeout=_CALL_S, metadata=self._metadata
        )
        return answer

    async def read_revision(
        self, request: agent_pb2.ReadRevisionRequest
    ) -> agent_pb2.ReadRevisionResponse:
        """Read a directory that is to be another revision of a model. Any term may ask."""
        answer: agent_pb2.ReadRevisionResponse
        answer = await self._stub.ReadRevision(request, timeout=READ_S, metadata=self._metadata)
        return answer

    async def watch(self) -> AsyncIterator[agent_pb2.WatchResponse]:
        """Yield at least one message per second while the agent is running."""
        request = agent_pb2.WatchRequest(controller=self._controller)
        async for message in self._stub.Watch(request, metadata=self._metadata):
            yield message

    async def close(self) -> None:
        """Close the channel. Running calls end with CANCELLED."""
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
