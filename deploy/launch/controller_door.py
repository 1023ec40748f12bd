"""The operators' access to a cluster's launcher: a unix socket in a folder that only its user can
open.

Every call is audited: the launcher logs who did what.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from twolane.config import CONTROLLER_SOCKET_NAME
from twolane.deploy.errors import DeposedError, NotProvenError, StartError
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.launch.supervisor import Supervisor
from twolane.rpc.call_gate import Context
from twolane.rpc.channel_options import INTERNAL_SERVER_OPTIONS
from twolane.rpc.handlers import unary
from twolane.security.gate import Gate
from twolane.security.identity import Identity, Role
from twolane.v1 import agent_pb2

MOST_PATH_BYTES = 107  # of a unix socket
ANSWER_S = 0.1  # calls are answered within that, when all is over
CONTROLLER = agent_pb2.DESCRIPTOR.services_by_name["ControllerService"].full_name


class ControllerDoor:
    """Serves operators' calls with a supervisor. `stop` stops the cluster as Ctrl-C does; `over`
    is to be called when that is done."""

    def __init__(
        self, supervisor: Supervisor, stop: Callable[[], None], tell: Callable[[Event], None]
    ) -> None:
        self._supervisor = supervisor
        self._stop = stop
        self._tell = tell
        self._is_over = asyncio.Event()
        self._why_not: Exception | None = None

    def over(self, why_not: Exception | None = None) -> None:
        """Those who have asked for a stop are told that nothing runs any more, or `why_not`."""
        if not self._is_over.is_set():
            self._why_not = why_not
            self._is_over.set()

    def handler(self) -> grpc.GenericRpcHandler:
        methods = {
            "FenceWorker": unary(agent_pb2.FenceWorkerRequest, self._fence_worker),
            "SayHostOff": unary(agent_pb2.SayHostOffRequest, self._say_host_off),
            "StopCluster": unary(agent_pb2.StopClusterRequest, self._stop_cluster),
        }
        return grpc.method_handlers_generic_handler(CONTROLLER, methods)

    async def _fence_worker(
        self, request: agent_pb2.FenceWorkerRequest, context: Context
    ) -> agent_pb2.FenceWorkerResponse:
        self._audit(request.who, f"fence {request.worker_id}", request.worker_id)
        try:
            proof = await self._supervisor.fence(request.worker_id)
        except (NotProvenError, DeposedError) as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"not proven: {error}")
        return agent_pb2.FenceWorkerResponse(proof=proof)

    async def _say_host_off(
        self, request: agent_pb2.SayHostOffRequest, context: Context
    ) -> agent_pb2.SayHostOffResponse:
        self._audit(request.who, f"has seen {request.host} off", request.host)
        try:
            proof = await self._supervisor.say_off(request.host)
        except (NotProvenError, DeposedError) as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"not proven: {error}")
        return agent_pb2.SayHostOffResponse(proof=proof)

    async def _stop_cluster(
        self, request: agent_pb2.StopClusterRequest, context: Context
    ) -> agent_pb2.StopClusterResponse:
        self._audit(request.who, "stop", "")
        asyncio.get_running_loop().call_soon(self._stop)
        await self._is_over.wait()
        if self._why_not is not None:
            text = f"not proven: {self._why_not}"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
        return agent_pb2.StopClusterResponse(pid=os.getpid())

    def _audit(self, who: str, what: str, name: str) -> None:
        self._tell(Event(kind=Kind.OPERATOR, name=name, text=f"{who or 'somebody'}: {what}"))


@asynccontextmanager
async def open_controller_door(door: ControllerDoor, folder: Path) -> AsyncIterator[None]:
    """Serve the socket in `folder`, which only its user can open, while the cluster runs."""
    gate = Gate("controller", is_private=True, anonymous=Identity(Role.OPERATOR, "local"))
    server = grpc.aio.server(interceptors=[gate], options=INTERNAL_SERVER_OPTIONS)
    server.add_generic_rpc_handlers((door.handler(),))
    path = folder / CONTROLLER_SOCKET_NAME
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        why = "set TMPDIR to a shorter path" if len(bytes(path)) > MOST_PATH_BYTES else str(error)
        raise StartError(f"cannot listen on {path}: {why}") from error
    await server.start()
    try:
        yield
        door.over()
    except Exception as error:
        door.over(error)
        raise
    finally:
        await server.stop(ANSWER_S)
