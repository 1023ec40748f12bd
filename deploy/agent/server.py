"""`async with AgentServer(config) as server`: an agent that serves at `server.endpoint`.

It needs only an event loop, so it runs as a separate process (`python -m twolane.deploy agent`) and
in a Ray actor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from twolane.deploy.agent import asked_drain
from twolane.deploy.agent.agent import Agent, Live
from twolane.deploy.agent.config import AgentConfig
from twolane.deploy.agent.ended import Ended, NeverHereError
from twolane.deploy.agent.reports import Reporter
from twolane.deploy.agent.term import OldTermError, Term
from twolane.deploy.errors import NotProvenError, StartError
from twolane.deploy.launch.process_launcher import DEPLOY_COMMAND
from twolane.deploy.spec.listeners import warn_of
from twolane.deploy.spec.revision import read_in_time
from twolane.deploy.spec.spec_json import from_json
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec, WorkerSpec
from twolane.errors import InvalidRequestError
from twolane.rpc.call_gate import Context
from twolane.rpc.channel_options import INTERNAL_SERVER_OPTIONS
from twolane.rpc.handlers import unary, unary_stream
from twolane.rpc.listen import join
from twolane.rpc.log_file import read_log_file
from twolane.security.credentials import Protection
from twolane.security.gate import Gate
from twolane.security.identity import Role
from twolane.v1 import agent_pb2

log = logging.getLogger(__name__)

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
        """Raises OSError or ValueError if the state folder cannot be used, and `ListenError` if the
        address needs TLS."""
        self.config = config
        self.endpoint = ""
        self.gate = gate or config.credentials.gate("the agent", config.bind_host, "--listen")
        self._reporter = Reporter(config.host_name, config.credentials)
        self.agent = Agent(config, self._reporter.report, command=command)
        self._running: asyncio.Task[None] | None = None
        self._has_stopped = False
        self._warning: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None
        self._server = grpc.aio.server(interceptors=[self.gate], options=INTERNAL_SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers((self._handler(),))

    async def __aenter__(self) -> Self:
        """Adopt the running processes and begin to serve. Raises `ListenError`, OSError."""
        config = self.config
        asked_drain.forget(config.state_dir)
        port = config.credentials.bind(self._server, config.bind_host, config.port, "--listen")
        self._running = asyncio.create_task(self.agent.run(), name="agent")
        adopted = asyncio.create_task(self.agent.ready.wait())
        await asyncio.wait({self._running, adopted}, return_when=asyncio.FIRST_COMPLETED)
        adopted.cancel()
        if self._running.done():
            await self._running
        await self._server.start()
        self.endpoint = join(config.bind_host, port)
        is_bare = config.credentials.protection(config.bind_host, "") is Protection.INSECURE
        self._warning = asyncio.create_task(warn_of([f"--listen {self.endpoint}"] * is_bare))
        self._draining = asyncio.create_task(self._drain_when_asked())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop serving. Processes that serve keep running; those still starting are ended."""
        # After `stop_all`, controllers first hear of the deaths.
        await self._server.stop(grace=self.config.heartbeat_s if self._has_stopped else 0)
        assert self._running is not None
        assert self._warning is not None
        assert self._draining is not None
        tasks = (self._draining, self._warning, self._running)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def stop_all(self, grace_s: float) -> None:
        """See `Agent.stop_all`."""
        self._has_stopped = True
        await self.agent.stop_all(grace_s)

    async def _drain_when_asked(self) -> None:
        """A drain that fails is forgotten, and tried again for a hook that still asks."""
        config = self.config
        while True:
            try:
                drain_s = asked_drain.asked(config.state_dir)
                if drain_s is not None:
                    text = "%s lets its processes finish, for up to %g s, as it was asked"
                    log.info(text, config.host_name, drain_s)
                    await self.stop_all(drain_s)
                    asked_drain.done(config.state_dir)
                    return
            except (NotProvenError, ValueError, OSError, ExceptionGroup):
                log.exception("%s has not ended all", config.host_name)
                with contextlib.suppress(OSError):
                    asked_drain.forget(config.state_dir)
            await asyncio.sleep(config.heartbeat_s)

    async def wait(self) -> None:
        """Wait until the agent fails, and raise the error."""
        assert self._running is not None
        await asyncio.shield(self._running)

    def _handler(self) -> grpc.GenericRpcHandler:
        methods = {
            "Describe": unary(agent_pb2.DescribeRequest, self._describe),
            "Start": unary(agent_pb2.StartRequest, self._start),
            "Stop": unary(agent_pb2.StopRequest, self._stop),
            "Fence": unary(agent_pb2.FenceRequest, self._fence),
            "Watch": unary_stream(agent_pb2.WatchRequest, self._watch),
            "KeepDesired": unary(agent_pb2.KeepDesiredRequest, self._keep_desired),
            "ReadHostLog": unary(agent_pb2.ReadHostLogRequest, self._read_log),
            "ReadRevision": unary(agent_pb2.ReadRevisionRequest, _read_revision),
        }
        return grpc.method_handlers_generic_handler(AGENT, methods)

    async def _describe(
        self, request: agent_pb2.DescribeRequest, context: Context
    ) -> agent_pb2.DescribeResponse:
        term = self.agent.terms.highest
        return agent_pb2.DescribeResponse(
            host=self.config.host_name,
            boot_id=self.agent.incarnation,
            gpus=self.config.gpus,
            cores=len(os.sched_getaffinity(0)),
            controller=None
            if term is None
            else agent_pb2.Controller(term=term.number, id=term.controller),
            desired=self.agent.kept.value,
        )

    async def _keep_desired(
        self, request: agent_pb2.KeepDesiredRequest, context: Context
    ) -> agent_pb2.KeepDesiredResponse:
        async with _refusing_old_terms(context):
            self.agent.keep_desired(_term(request.controller), request.desired)
        return agent_pb2.KeepDesiredResponse()

    async def _read_log(
        self, request: agent_pb2.ReadHostLogRequest, context: Context
    ) -> agent_pb2.ReadHostLogResponse:
        self._audit(context, f"read the log of {request.log.name}")
        source = f"the agent of {self.config.host_name}"
        try:
            found = read_log_file(self.config.log_dir, request.log, source)
        except OSError as error:
            why = f"the log of {request.log.name} cannot be read: {error}"
            await context.abort(grpc.StatusCode.INTERNAL, why)
        if found is None:
            return agent_pb2.ReadHostLogResponse()
        return agent_pb2.ReadHostLogResponse(log=found.response, age_s=found.age_s)

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

    def _audit(self, context: Context, what: str) -> bool:
        """Whether an operator calls; then the agent's log has it."""
        caller = self.gate.identity(context)
        is_operator = caller.role is Role.OPERATOR
        if is_operator:
            log.warning("audit: %s: %s", caller, what)
        return is_operator

    async def _fence(
        self, request: agent_pb2.FenceRequest, context: Context
    ) -> agent_pb2.FenceResponse:
        is_operator = self._audit(context, f"fence {request.name} {request.epoch:016x}")
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
                        boot_id=self.agent.incarnation,
                        is_pod=bool(self.config.host_uid),
                        is_over=self.agent.is_over,
                        live=[_process(live) for live in seen.live],
                        ended=[_ended(each) for each in seen.ended],
                    )
                )


async def _read_revision(
    request: agent_pb2.ReadRevisionRequest, context: Context
) -> agent_pb2.ReadRevisionResponse:
    its = await read_in_time(
        Path(request.model_dir),
        request.revision_dir,
        with_weights=not request.without_weights,
    )
    return agent_pb2.ReadRevisionResponse(why_not=its.why_not, fingerprint=its.fingerprint)


@contextlib.asynccontextmanager
async def _refusing_old_terms(context: Context) -> AsyncIterator[None]:
    try:
        yield
    except OldTermError as error:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))


def _term(controller: agent_pb2.Controller) -> Term:
    if not (controller.term and controller.id):
        raise InvalidRequestError("a command must name its controller", field="controller")
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
        pool=evidence.pool,
        roles=evidence.roles,
        devices=evidence.devices,
        model_dir=evidence.model_dir,
    )


def _ended(ended: Ended) -> agent_pb2.EndedProcess:
    return agent_pb2.EndedProcess(
        name=ended.name,
        epoch=ended.epoch,
        pid=ended.pid,
        how=ended.how,
        proof_class=ended.proof_class,
    )
