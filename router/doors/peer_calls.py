"""Calls to the other routers of the cluster, for questions that this router cannot answer alone.

All are called at once, with a short timeout each. A router that is down delays a call at most that
long, and is left out or shown as unreachable.
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

ASK_S = 1.0  # for what clients wait for
LOOK_S = 2.0  # for what operators look at
AnswerT = TypeVar("AnswerT")
Stub = Any  # grpc's generator makes no types for async stubs
Failure = grpc.aio.AioRpcError | TlsFilesError


class PeerCalls:
    """The calls of one router to the others."""

    def __init__(self, router: Router, credentials: Credentials) -> None:
        self._router = router
        self._credentials = credentials

    async def whole_status(
        self, own: cluster_pb2.GetClusterStatusResponse, *, without_requests: bool = False
    ) -> cluster_pb2.GetClusterStatusResponse:
        """This router's status, `own`, merged with those of the others."""
        own.routers.append(router_status(self._router.address, own))
        request = cluster_pb2.GetClusterStatusRequest(without_requests=without_requests)
        for address, answer in await self._all(
            lambda stub, how: stub.GetClusterStatus(request, **how), within_s=LOOK_S
        ):
            if isinstance(answer, Failure):
                own.routers.add(address=address, unreached=_why(answer))
            else:
                own.routers.append(router_status(address, answer))
                add_status(own, answer)
        return own

    async def look(
        self, method: str, request: bytes
    ) -> tuple[list[bytes], list[cluster_pb2.RouterStatus]]:
        """What the others answer to that method of `AdminService`, and those that do not, by why.
        A router of before that method has no part in it."""
        asked = cluster_pb2.LookRequest(method=method, request=request)
        found, missing = [], []
        for address, answer in await self._all(
            lambda stub, how: stub.Look(asked, **how), within_s=LOOK_S
        ):
            if isinstance(answer, Failure):
                missing.append(cluster_pb2.RouterStatus(address=address, unreached=_why(answer)))
            else:
                found.append(answer.response)
        return found, missing

    async def cancel(self, request: inference_pb2.CancelRequest) -> bool:
        """Cancel a request at the router that answers it. False if none of the others does."""
        answers = await self._all(lambda stub, how: stub.Cancel(request, **how), ASK_S)
        return any(not isinstance(answer, Failure) and answer.found for _, answer in answers)

    async def find(
        self, tenant: str, submission_ids: Sequence[str]
    ) -> list[inference_pb2.SubmissionStatus]:
        """The states of those submissions that other routers answer."""
        request = cluster_pb2.FindSubmissionsRequest(tenant=tenant, submission_ids=submission_ids)
        answers = await self._all(lambda stub, how: stub.FindSubmissions(request, **how), ASK_S)
        return [
            submission
            for _, answer in answers
            if not isinstance(answer, Failure)
            for submission in answer.submissions
        ]

    async def drain(self, request: cluster_pb2.DrainWorkerRequest) -> None:
        """Forward a drain to all other routers that know the worker."""
        await self._all(lambda stub, how: stub.DrainWorker(request, **how), ASK_S)

    async def prepare_config(self, request: cluster_pb2.PrepareConfigRequest) -> list[str]:
        """Have all others check a change. Returns why some cannot; a router that does not answer
        is one of them."""
        return await self._refusals(lambda stub, how: stub.PrepareConfig(request, **how))

    async def apply_config(self, revision: int, *, forget: bool = False) -> list[str]:
        """Make a prepared change hold at all others, or forget it. Returns who does not."""
        request = cluster_pb2.ApplyConfigRequest(revision=revision, forget=forget)
        return await self._refusals(lambda stub, how: stub.ApplyConfig(request, **how))

    async def _refusals(
        self, ask: Callable[[Stub, dict[str, object]], Awaitable[object]]
    ) -> list[str]:
        answers = await self._all(ask, within_s=LOOK_S)
        return [
            f"{address.router_id}: {_why(answer)}"
            for address, answer in answers
            if isinstance(answer, Failure)
        ]

    async def _all(
        self, ask: Callable[[Stub, dict[str, object]], Awaitable[AnswerT]], within_s: float
    ) -> list[tuple[worker_pb2.RouterAddress, AnswerT | Failure]]:
        others = self._router.known.others(asyncio.get_running_loop().time())
        answers = await asyncio.gather(*(self._one(other, ask, within_s) for other in others))
        return list(zip(others, answers, strict=True))

    async def _one(
        self,
        other: worker_pb2.RouterAddress,
        ask: Callable[[Stub, dict[str, object]], Awaitable[AnswerT]],
        within_s: float,
    ) -> AnswerT | Failure:
        endpoint = other.workers_endpoint
        how = {"timeout": within_s, "metadata": self._credentials.metadata(endpoint)}
        try:
            async with self._credentials.channel(endpoint, Role.ROUTER) as channel:
                return await ask(cluster_pb2_grpc.PeerServiceStub(channel), how)
        except (grpc.aio.AioRpcError, TlsFilesError) as error:
            log.debug("router %s does not answer: %s", other.router_id, _why(error))
            return error


def _why(error: Failure) -> str:
    return str(error) if isinstance(error, TlsFilesError) else error.details() or error.code().name
