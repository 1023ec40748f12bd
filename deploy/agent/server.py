"""`async with AgentServer(config) as server`: an agent that serves at `server.endpoint`.

It needs an event loop and nothing else: it runs as a process of its own (`python -m twolane.deploy
agent`), and in a Ray actor.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self

import grpc

from twolane.deploy.agent.agent import (
    Agent,
    Live,
    NeverHereError,
)
from twolane.deploy.agent.config import AgentConfig
from twolane.deploy.agent.ended import Ended
from twolane.deploy.agent.reports import Reporter
from twolane.deploy.agent.term import OldTermError, Term
from twolane.deploy.errors import NotProvenError, StartError
from twolane.deploy.launch.process_launcher import DEPLOY_COMMAND
from twolane.deploy.spec.spec_json import from_json
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec, WorkerSpec
from twolane.errors import InvalidRequestError
from twolane.rpc.call_gate import Context
from twolane.rpc.handlers import unary, unary_stream
from twolane.rpc.listen import join
from twolane.rpc.options import INTERNAL_SERVER_OPTIONS
from twolane.security.gate import Gate
from twolane.security.identity import Role
from twolane.v1 import agent_pb2

AGENT = agent_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name
_RESULT = agent_pb2.FenceResponse


class AgentServer:
    """An `Agent` behind gRPC."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        gate: Gate | None = None,
        command: Sequence[str] = DEPLOY_COMMAND,
    ) -> None:
        """Raises OSError or ValueError for a state folder that cannot be used, `ListenError` for an
        address that needs TLS."""
        self.config = config
        self.endpoint = ""
        self.gate = gate or config.credentials.gate("the agent", config.bind_host, "--listen")
        self._reporter = Reporter(config.host_name, config.credentials)
        self.agent = Agent(config, self._reporter.report, command=command)
        self._running: asyncio.Task[None] | None = None
        self._server = grpc.aio.server(interceptors=[self.gate], options=INTERNAL_SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers((self._handler(),))

    async def __aenter__(self) -> Self:
        """Returns when it serves, having adopted what runs. Raises `ListenError`, OSError."""
        config = self.config
        port = config.credentials.bind(self._server, config.bind_host, config.port, "--listen")
        self._running = asyncio.create_task(self.agent.run(), name="agent")
        adopted = asyncio.create_task(self.agent.ready.wait())
        await asyncio.wait({self._running, adopted}, return_when=asyncio.FIRST_COMPLETED)
        adopted.cancel()
        if self._running.done():
            await self._running
        await self._server.start()
        self.endpoint = join(self.config.bind_host, port)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """What it has started and what serves goes on; what was still starting ends."""
        await self._server.stop(grace=0)
        assert self._running is not None
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._running

    async def wait(self) -> None:
        """Until the agent breaks: raises what broke it."""
        assert self._running is not None
        await asyncio.shield(self._running)

    def _handler(self) -> grpc.GenericRpcHandler:
        methods = {
            "Describe": unary(agent_pb2.DescribeRequest, self._describe),
            "Start": unary(agent_pb2.StartRequest, self._start),
            "Stop": unary(agent_pb2.StopRequest, self._stop),
            "Fence": unary(agent_pb2.FenceRequest, self._fence),
            "Watch": unary_stream(agent_pb2.WatchRequest, self._watch),
        }
        return grpc.method_handlers_generic_handler(AGENT, methods)

    async def _describe(
        self, request: agent_pb2.DescribeRequest, context: Context
    ) -> agent_pb2.DescribeResponse:
        term = self.agent.terms.highest
        return agent_pb2.DescribeResponse(
            host=self.config.host_name,
            boot_id=self.agent.boot_id,
            gpus=self.config.gpus,
            cores=len(os.sched_getaffinity(0)),
            controller=None
            if term is None
            else agent_pb2.Controller(term=term.number, id=term.controller),
        )

    async def _start(
        self, request: agent_pb2.StartRequest, context: Context
    ) -> agent_pb2.StartResponse:
        async with _refusing_old_terms(context):
            try:
                live = await self.agent.start(_term(request.controller), _spec(request))
            except StartError as error:
                return agent_pb2.StartResponse(error=str(error))
            return agent_pb2.StartResponse(process=_process(live))
        raise AssertionError("abort raises")

    async def _stop(
        self, request: agent_pb2.StopRequest, context: Context
    ) -> agent_pb2.StopResponse:
        async with _refusing_old_terms(context):
            term = _term(request.controller)
            await self.agent.stop(term, request.name, request.pid, request.grace_s)
        return agent_pb2.StopResponse()

    async def _fence(
        self, request: agent_pb2.FenceRequest, context: Context
    ) -> agent_pb2.FenceResponse:
        is_operator = self.gate.identity(context).role is Role.OPERATOR
        term = None if is_operator else _term(request.controller)
        try:
            async with _refusing_old_terms(context):
                ended = await self.agent.fence(
                    term,
                    request.name,
                    epoch=request.epoch,
                    pid=request.pid,
                    boot=request.boot_id,
                )
        except NeverHereError as error:
            return _RESULT(result=_RESULT.RESULT_NEVER_HERE, why=str(error))
        except NotProvenError as error:
            return _RESULT(result=_RESULT.RESULT_NOT_PROVEN, why=str(error))
        return _RESULT(result=_RESULT.RESULT_FENCED, proof_class=ended.proof_class, how=ended.how)

    async def _watch(self, request: agent_pb2.WatchRequest, context: Context) -> None:
        async with _refusing_old_terms(context):
            async for seen in self.agent.watch(_term(request.controller)):
                await context.write(
                    agent_pb2.WatchResponse(
                        boot_id=self.agent.boot_id,
                        live=[_process(live) for live in seen.live],
                        ended=[_ended(each) for each in seen.ended],
                    )
                )


@contextlib.asynccontextmanager
async def _refusing_old_terms(context: Context) -> AsyncIterator[None]:
    try:
        yield
    except OldTermError as error:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))


def _term(controller: agent_pb2.Controller) -> Term:
    if not (controller.term and controller.id):
        raise InvalidRequestError("a command names its controller", field="controller")
    return Term(controller.term, controller.id)


def _spec(request: agent_pb2.StartRequest) -> ProcessSpec:
    try:
        if request.WhichOneof("spec") == "router":
            return from_json(RouterSpec, request.router)
        return from_json(WorkerSpec, request.worker)
    except ValueError as error:
        raise InvalidRequestError(str(error), field="spec") from error


def _process(live: Live) -> agent_pb2.HostProcess:
    handle, evidence = live.handle, live.evidence
    return agent_pb2.HostProcess(
        name=handle.name,
        epoch=handle.epoch,
        pid=handle.pid,
        start_ticks=evidence.start_ticks,
        listeners=agent_pb2.Listeners(
            grpc=handle.endpoint,
            metrics=handle.metrics_endpoint,
            workers=handle.worker_endpoint,
            http=handle.http_endpoint,
            admin=handle.admin_endpoint,
        ),
        runs_on=handle.runs_on,
        digest=evidence.digest,
    )


def _ended(ended: Ended) -> agent_pb2.EndedProcess:
    return agent_pb2.EndedProcess(
        name=ended.name,
        epoch=ended.epoch,
        pid=ended.pid,
        how=ended.how,
        proof_class=ended.proof_class,
    )
