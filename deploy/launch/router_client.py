"""The supervisor's calls to a router. If a call fails, the supervisor repeats it later: no error of
a router ends the supervisor."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from twolane.deploy.process.handshake import Handle
from twolane.security.credentials import Credentials
from twolane.security.identity import Role
from twolane.security.tls import TlsFilesError
from twolane.v1 import acts_pb2, cluster_pb2, cluster_pb2_grpc, worker_pb2

AnswerT = TypeVar("AnswerT")

log = logging.getLogger(__name__)


class RouterClient:
    """An async context manager around channels to the router's doors for workers and clients."""

    def __init__(
        self,
        router: Handle,
        credentials: Credentials,
        routers: Sequence[worker_pb2.RouterAddress] = (),
        *,
        timeout_s: float = 2.0,
    ) -> None:
        """`routers` are all routers of the cluster, which are reported to this one."""
        self.name = router.name
        self.is_silent = False  # whether the last call got no answer in its time
        self._lost_at: float | None = None  # when the first call failed since the last answer
        self._routers = routers
        self._credentials = credentials
        self._worker_endpoint = router.worker_endpoint
        self._worker_door = credentials.channel(router.worker_endpoint, Role.ROUTER)
        self._door = credentials.channel(router.endpoint, Role.ROUTER)
        self._health: Any = health_pb2_grpc.HealthStub(self._door)
        self._timeout_s = timeout_s
        self._in_hand: set[int] = set()  # numbers of the router's acts that are being done
        self._answers: dict[int, acts_pb2.ControllerActResult] = {}

    async def is_serving(self) -> bool:
        try:
            request = health_pb2.HealthCheckRequest()
            answer = await self._health.Check(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            self._note(error)
            return False
        self._note(None)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def supervise(
        self, report: cluster_pb2.SuperviseRequest
    ) -> cluster_pb2.SuperviseResponse | None:
        """Tell the router what the controller knows, and the answers to its acts. Returns its
        members, and the acts that are new; None while it does not answer."""
        stub = cluster_pb2_grpc.MembershipServiceStub(self._worker_door)
        request = cluster_pb2.SuperviseRequest(
            routers=self._routers, results=self._answers.values()
        )
        request.MergeFrom(report)
        told = {*self._answers}
        answer: cluster_pb2.SuperviseResponse | None
        answer = await self._try(stub.Supervise(request, **self._how()))
        if answer is None:
            return None
        # One that was answered during the call is in `_answers`: the router named it still.
        known = self._in_hand | self._answers.keys() | told
        for number in told:  # it has them, and names the act no more
            self._answers.pop(number, None)
        new = [act for act in answer.acts if act.number not in known]
        self._in_hand |= {act.number for act in new}
        del answer.acts[:]
        answer.acts.extend(new)
        return answer

    async def workers(self) -> list[cluster_pb2.WorkerStatus]:
        """The router's members; none while it does not answer. Acts wait on."""
        stub = cluster_pb2_grpc.MembershipServiceStub(self._worker_door)
        request = cluster_pb2.SuperviseRequest(routers=self._routers)
        answer = await self._try(stub.Supervise(request, **self._how()))
        return [] if answer is None else list(answer.workers)

    def answer(self, result: acts_pb2.ControllerActResult) -> None:
        """Tell it with the next `supervise`."""
        self._in_hand.discard(result.number)
        self._answers[result.number] = result

    async def drain(self, request: cluster_pb2.DrainWorkerRequest) -> str:
        """Returns why it was not done; empty: it was."""
        stub = cluster_pb2_grpc.PeerServiceStub(self._worker_door)
        try:
            await stub.DrainWorker(request, **self._how())
        except grpc.aio.AioRpcError as error:
            return error.details() or error.code().name
        return ""

    async def report_gone(self, epoch: int, proof_class: str = "A") -> bool:
        """Report that `epoch` is proven dead. Returns False if that was not delivered: try
        again."""
        stub = cluster_pb2_grpc.MembershipServiceStub(self._worker_door)
        request = cluster_pb2.ReportGoneRequest(epoch=epoch, proof_class=proof_class)
        return await self._try(stub.ReportGone(request, **self._how())) is not None

    def _how(self) -> dict[str, Any]:
        metadata = self._credentials.metadata(self._worker_endpoint)
        return {"timeout": self._timeout_s, "metadata": metadata}

    async def _try(self, call: Awaitable[AnswerT]) -> AnswerT | None:
        """The answer of a call at the router's port for workers; None if it does not answer now."""
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            self._note(error)
            await self._renew()
            return None
        self._note(None)
        return answer

    async def _renew(self) -> None:
        """The next channel reads our certificate again, which may have been renewed. If it cannot
        be read now, the present one stays. Other calls may still use that: they end in their
        time."""
        failed = self._worker_door
        try:
            self._worker_door = self._credentials.channel(self._worker_endpoint, Role.ROUTER)
        except TlsFilesError as error:
            log.error("%s: %s", self.name, error)
            return
        await failed.close(self._timeout_s)

    def _note(self, error: grpc.aio.AioRpcError | None) -> None:
        """Log the first call that fails, and the next one that is answered. Any status is "not
        now": a router that dies during a call may answer with INTERNAL, CANCELLED or UNKNOWN; it
        is restarted, and the call made again later."""
        now = time.monotonic()
        self.is_silent = error is not None and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if error is None and self._lost_at is not None:
            log.warning("%s answers again, after %.0f s", self.name, now - self._lost_at)
            self._lost_at = None
        elif error is not None and self._lost_at is None:
            self._lost_at = now
            code, details = error.code().name, error.details() or ""
            said = details.rpartition(": ")[2] or details
            since = time.strftime("%H:%M:%S")
            log.warning("%s does not answer since %s: %s: %s", self.name, since, code, said)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for channel in (self._worker_door, self._door):
            await channel.close()
