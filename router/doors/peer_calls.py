"""Asks the other routers of the cluster what this one was asked and cannot answer for them.

All are asked at once, and each has a moment: one that is down delays nobody for longer, and is left
out, or shown as such.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc

from twolane.router.doors.whole_status import add_status, router_status
from twolane.router.router import Router
from twolane.security.credentials import Credentials
from twolane.security.identity import Role
from twolane.security.tls import TlsFilesError
from twolane.v1 import cluster_pb2, cluster_pb2_grpc, inference_pb2, worker_pb2

log = logging.getLogger(__name__)

ASK_S = 1.0
AnswerT = TypeVar("AnswerT")
Stub = Any  # grpc's generator makes no types for calls that are awaited
Failure = grpc.aio.AioRpcError | TlsFilesError


class PeerCalls:
    """Of one router."""

    def __init__(self, router: Router, credentials: Credentials) -> None:
        self._router = router
        self._credentials = credentials

    async def whole_status(
        self, own: cluster_pb2.GetClusterStatusResponse
    ) -> cluster_pb2.GetClusterStatusResponse:
        """Our `own` status and those of the others, as one."""
        own.routers.append(router_status(self._router.address, own))
        request = cluster_pb2.GetClusterStatusRequest()
        for address, answer in await self._all(
            lambda stub, how: stub.GetClusterStatus(request, **how)
        ):
            if isinstance(answer, Failure):
                own.routers.add(address=address, unreached=_why(answer))
            else:
                own.routers.append(router_status(address, answer))
                add_status(own, answer)
        return own

    async def cancel(self, request: inference_pb2.CancelRequest) -> bool:
        """Have the router that answers it end it. False: none of them does."""
        answers = await self._all(lambda stub, how: stub.Cancel(request, **how))
        return any(not isinstance(answer, Failure) and answer.found for _, answer in answers)

    async def find(
        self, tenant: str, submission_ids: Sequence[str]
    ) -> list[inference_pb2.SubmissionStatus]:
        """How those of them are that other routers answer."""
        request = cluster_pb2.FindSubmissionsRequest(tenant=tenant, submission_ids=submission_ids)
        answers = await self._all(lambda stub, how: stub.FindSubmissions(request, **how))
        return [
            submission
            for _, answer in answers
            if not isinstance(answer, Failure)
            for submission in answer.submissions
        ]

    async def drain(self, request: cluster_pb2.DrainWorkerRequest) -> None:
        """Have all others do it that know the worker."""
        await self._all(lambda stub, how: stub.DrainWorker(request, **how))

    async def _all(
        self, ask: Callable[[Stub, dict[str, object]], Awaitable[AnswerT]]
    ) -> list[tuple[worker_pb2.RouterAddress, AnswerT | Failure]]:
        others = self._router.known.others(asyncio.get_running_loop().time())
        answers = await asyncio.gather(*(self._one(other, ask) for other in others))
        return list(zip(others, answers, strict=True))

    async def _one(
        self,
        other: worker_pb2.RouterAddress,
        ask: Callable[[Stub, dict[str, object]], Awaitable[AnswerT]],
    ) -> AnswerT | Failure:
        endpoint = other.workers_endpoint
        how = {"timeout": ASK_S, "metadata": self._credentials.metadata(endpoint)}
        try:
            async with self._credentials.channel(endpoint, Role.ROUTER) as channel:
                return await ask(cluster_pb2_grpc.PeerServiceStub(channel), how)
        except (grpc.aio.AioRpcError, TlsFilesError) as error:
            log.debug("router %s does not answer: %s", other.router_id, _why(error))
            return error


def _why(error: Failure) -> str:
    return str(error) if isinstance(error, TlsFilesError) else error.details() or error.code().name
