"""Calls workers' Inspect, at their own listeners."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc

from twolane.errors import UnavailableError
from twolane.failures import explain
from twolane.router.members.member import Member
from twolane.security.credentials import Credentials
from twolane.security.identity import Role
from twolane.security.tls import TlsFilesError
from twolane.v1 import facts_pb2, worker_pb2, worker_pb2_grpc

ASK_S = 2.0
MOST_AT_ONCE = 32


class WorkerCalls:
    """The calls of one router to workers."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def inspect_all(
        self, members: Sequence[Member], request: worker_pb2.InspectRequest
    ) -> list[worker_pb2.InspectResponse | str]:
        """Each worker's answer within two seconds, or why there is none."""
        room = asyncio.Semaphore(MOST_AT_ONCE)
        end = asyncio.get_running_loop().time() + ASK_S

        async def one(member: Member) -> worker_pb2.InspectResponse | str:
            try:
                async with asyncio.timeout_at(end), room:
                    return await self.inspect(member, request)
            except TimeoutError:
                return f"has not answered in {ASK_S:g} s"

        return list(await asyncio.gather(*map(one, members)))

    async def answer_alone(
        self, member: Member, request: facts_pb2.AnswerAloneRequest, within_s: float
    ) -> facts_pb2.AnswerAloneResponse:
        """The worker's answer. Raises the `TwolaneError` of its status."""
        endpoint = member.announce.worker.endpoint
        metadata = self._credentials.metadata(endpoint)
        try:
            async with self._credentials.channel(endpoint, Role.WORKER) as channel:
                stub = worker_pb2_grpc.WorkerServiceStub(channel)
                answer = await stub.AnswerAlone(request, metadata=metadata, timeout=within_s)
        except grpc.aio.AioRpcError as error:
            raise explain(error, endpoint=endpoint, timeout_s=within_s) from error
        except TlsFilesError as error:
            raise UnavailableError(str(error)) from error
        assert isinstance(answer, facts_pb2.AnswerAloneResponse)
        return answer

    async def inspect(
        self, member: Member, request: worker_pb2.InspectRequest
    ) -> worker_pb2.InspectResponse | str:
        endpoint = member.announce.worker.endpoint
        metadata = self._credentials.metadata(endpoint)
        try:
            async with self._credentials.channel(endpoint, Role.WORKER) as channel:
                stub = worker_pb2_grpc.WorkerServiceStub(channel)
                answer = await stub.Inspect(request, metadata=metadata, timeout=ASK_S)
        except grpc.aio.AioRpcError as error:
            return error.details() or error.code().name
        except TlsFilesError as error:
            return str(error)
        if answer.worker.epoch != member.epoch:
            return "another incarnation of it answers there"
        assert isinstance(answer, worker_pb2.InspectResponse)
        return answer
