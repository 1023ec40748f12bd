"""The last lines of a process's log: of this router, of another one, or of a worker. The log of a
process that does not answer is read from its file, by the launcher or by the agent of its host.

A log may quote what users have sent: who reads which one is audited, as acts are. A reader who
follows one is noted again each ten minutes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import grpc

from twolane.errors import (
    InternalError,
    InvalidParameterError,
    InvalidRequestError,
    UnavailableError,
)
from twolane.router.doors.admin.audited_acts import AuditedActs
from twolane.router.doors.admin.own import OwnLooks
from twolane.router.doors.admin.worker_calls import WorkerCalls
from twolane.router.doors.peer_calls import PeerCalls
from twolane.router.members.member import MemberState
from twolane.router.router import Router
from twolane.rpc.call_gate import Context
from twolane.rpc.handlers import Handler, unary
from twolane.rpc.log_file import LINES
from twolane.rpc.log_tail import MOST_LINES
from twolane.v1 import acts_pb2, worker_pb2

_FILE_WITHIN_S = 10.0
_NOTED_S = 600.0
MOST_NOTED = 1_000
_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION.value[0]


@dataclass(frozen=True, slots=True)
class _Noted:
    """The number of the line before the first one whose reading is audited, and until when."""

    first: int
    until: float


class Logs:
    """`own` reads this router's; `audited` audits."""

    def __init__(
        self,
        router: Router,
        peers: PeerCalls,
        workers: WorkerCalls,
        own: OwnLooks,
        audited: AuditedActs,
    ) -> None:
        self._router = router
        self._peers = peers
        self._workers = workers
        self._own = own
        self._audited = audited
        self._noted: OrderedDict[tuple[str, str, str], _Noted] = OrderedDict()  # the latest last

    def methods(self) -> Mapping[str, Handler]:
        return {"ReadLog": unary(acts_pb2.ReadLogRequest, self._read)}

    async def _read(
        self, request: acts_pb2.ReadLogRequest, context: Context
    ) -> acts_pb2.ReadLogResponse:
        answer = acts_pb2.ReadLogResponse()

        async def work() -> str:
            answer.CopyFrom(await self._found(request))
            return in_words(answer)

        async def is_read() -> str:
            return in_words(answer)

        who = self._audited.caller(context)
        if self._goes_on(request, who):
            await work()
            if answer.source == request.source and answer.last_line >= request.after_line:
                return answer
            work = is_read  # of another log, or of one that begins anew
        await self._audited.watch(context, "read-log", request.name, acts_pb2.Act(), work)
        self._note(who, request.name, answer)
        return answer

    def _goes_on(self, request: acts_pb2.ReadLogRequest, who: str) -> bool:
        """Whether the reading of all its lines is audited."""
        noted = self._noted.get((who, request.name, request.source))
        now = asyncio.get_running_loop().time()
        return noted is not None and request.after_line >= noted.first and now < noted.until

    def _note(self, who: str, name: str, answer: acts_pb2.ReadLogResponse) -> None:
        """Several may follow a log under one name: what the first of them reads is audited."""
        key, now = (who, name, answer.source), asyncio.get_running_loop().time()
        first = answer.last_line - len(answer.lines)
        before = self._noted.pop(key, None)
        if before is not None and now < before.until:
            first = min(first, before.first)
        self._noted[key] = _Noted(first, now + _NOTED_S)
        while len(self._noted) > MOST_NOTED:
            self._noted.popitem(last=False)

    async def _found(self, request: acts_pb2.ReadLogRequest) -> acts_pb2.ReadLogResponse:
        if not 0 <= request.lines <= MOST_LINES:
            raise InvalidParameterError("lines", request.lines, f"0 to {MOST_LINES}")
        if request.from_file:
            return await self._from_file(request)
        try:
            return await self._of_process(request)
        except (InvalidRequestError, UnavailableError) as no_answer:
            try:
                return await self._from_file(request)
            except (InvalidRequestError, UnavailableError) as error:
                raise type(no_answer)(f"{no_answer.message}; {error.message}") from error

    async def _of_process(self, request: acts_pb2.ReadLogRequest) -> acts_pb2.ReadLogResponse:
        """The process's own answer. Raises `InvalidRequestError` if it is not known, and
        `UnavailableError`."""
        if request.name == self._router.address.router_id:
            return await self._own.read_log(request)
        others = self._router.known.others(asyncio.get_running_loop().time())
        if request.name in {other.router_id for other in others}:
            return await self._of_router(request)
        return await self._of_worker(request)

    async def _of_router(self, request: acts_pb2.ReadLogRequest) -> acts_pb2.ReadLogResponse:
        found, missing = await self._peers.look("ReadLog", request.SerializeToString())
        answers = map(acts_pb2.ReadLogResponse.FromString, found)
        answer = next((each for each in answers if each.source), None)
        if answer is not None:
            return answer
        why = [its.unreached for its in missing if its.address.router_id == request.name]
        raise UnavailableError(f"router {request.name} does not answer: {', '.join(why)}")

    async def _of_worker(self, request: acts_pb2.ReadLogRequest) -> acts_pb2.ReadLogResponse:
        member = self._router.operations.member(request.name)
        if member.state is MemberState.GONE:
            raise InvalidRequestError(f"{request.name} is gone", field="name")
        source = f"{request.name} {member.epoch:016x}"
        asked = worker_pb2.InspectRequest(
            log_lines=request.lines or LINES,
            after_log_line=request.after_line if request.source == source else 0,
        )
        answer = await self._workers.inspect(member, asked)
        if isinstance(answer, str):
            raise UnavailableError(f"{request.name} does not answer ({answer})")
        return acts_pb2.ReadLogResponse(
            lines=answer.log, last_line=answer.last_log_line, source=source
        )

    async def _from_file(self, request: acts_pb2.ReadLogRequest) -> acts_pb2.ReadLogResponse:
        """Raises `UnavailableError` without a controller, `InvalidRequestError` if there is no such
        file or it cannot be read, and `InternalError` where the controller has failed."""
        mail, now = self._router.operations.controllers, asyncio.get_running_loop().time()
        asked = acts_pb2.ControllerAct(read_log=request)
        result = await mail.ask(asked, _FILE_WITHIN_S, now)
        if result.code == _PRECONDITION:
            raise InvalidRequestError(result.error)
        if result.code:
            raise InternalError(f"the controller: {result.error}")
        return result.log


def in_words(answer: acts_pb2.ReadLogResponse) -> str:
    return f"{len(answer.lines)} lines of {answer.source}"
