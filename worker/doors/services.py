"""The worker's gRPC services: a few lines between a stream and the worker's core."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc

from twolane.engine.step import SampledToken
from twolane.errors import PermissionDeniedError, UnavailableError, UnimplementedError
from twolane.rpc.handlers import streams, unary
from twolane.rpc.link import GrpcLink
from twolane.rpc.log_tail import LOG_TAIL
from twolane.security.gate import Gate
from twolane.security.identity import Role
from twolane.security.process_facts import process_facts, unreachable
from twolane.security.tls import TlsFiles
from twolane.v1 import facts_pb2, sampling_pb2, transfer_pb2, worker_pb2
from twolane.worker.errors import RouterInUseError, StaleEpochError
from twolane.worker.worker import Worker

Context = Any  # grpc.aio.ServicerContext, which the stubs describe only in part

WORKER = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name
MOST_REACHED = 64
TRANSFER = transfer_pb2.DESCRIPTOR.services_by_name["TransferService"].full_name


class Services:
    """`twolane.v1.WorkerService` and `twolane.v1.TransferService`."""

    def __init__(self, worker: Worker, gate: Gate, tls: TlsFiles | None = None) -> None:
        """`gate` identifies callers; `tls` are the files whose certificate a diagnosis looks at."""
        self._worker = worker
        self._gate = gate
        self._tls = tls
        self._open: dict[GrpcLink[Any, Any], asyncio.Task[Any]] = {}
        self._finished: set[GrpcLink[Any, Any]] = set()
        self._none_open = asyncio.Event()
        self._none_open.set()
        self._is_finishing = False

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """For `add_generic_rpc_handlers`."""
        methods = {
            WORKER: {
                "Session": streams(worker_pb2.SessionRequest, self._session),
                "Inspect": unary(worker_pb2.InspectRequest, self._inspect),
                "AnswerAlone": unary(facts_pb2.AnswerAloneRequest, self._answer_alone),
            },
            TRANSFER: {"Connect": streams(transfer_pb2.ConnectRequest, self._connect)},
        }
        generic = grpc.method_handlers_generic_handler
        return tuple(generic(service, named) for service, named in methods.items())

    async def finish(self, within_s: float) -> None:
        """End every stream once its queued messages are written, and refuse those that come from
        now on. Raises `TimeoutError` if a peer has not read them within `within_s`."""
        self._is_finishing = True
        async with asyncio.timeout(within_s):
            await asyncio.gather(*map(self._finish, list(self._open)))
            await self._none_open.wait()

    async def _finish(self, link: GrpcLink[Any, Any]) -> None:
        await link.finish()
        if (handler := self._open.get(link)) is not None:  # it is waiting for a message
            self._finished.add(link)
            handler.cancel()

    @contextmanager
    def _link(self, context: Context) -> Iterator[GrpcLink[Any, Any]]:
        """A link over this stream, for the current handler. If `finish` ends it, the context is
        left without an error, so that the peer gets status OK after the last message. Raises
        `UnavailableError` once `finish` runs, which would wait for it."""
        if self._is_finishing:
            raise UnavailableError("this worker is stopping")
        link: GrpcLink[Any, Any] = GrpcLink(context)
        handler = asyncio.current_task()
        assert handler is not None
        self._open[link] = handler
        self._none_open.clear()
        try:
            yield link
        except asyncio.CancelledError:
            if link not in self._finished or handler.uncancel() > 0:
                raise
        finally:
            link.close()
            del self._open[link]
            self._finished.discard(link)
            if not self._open:
                self._none_open.set()

    async def _session(self, context: Context) -> None:
        try:
            with self._link(context) as link:
                await self._worker.serve_session(link)
        except StaleEpochError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except RouterInUseError as error:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, str(error))

    async def _connect(self, context: Context) -> None:
        has_decode = True
        with self._link(context) as link:
            has_decode = await self._worker.serve_peer(link)
        if not has_decode:
            raise UnimplementedError("this worker does not decode")

    async def _answer_alone(
        self, request: facts_pb2.AnswerAloneRequest, context: Context
    ) -> facts_pb2.AnswerAloneResponse:
        return alone_response(self._worker, await self._worker.answer_alone(request))

    async def _inspect(
        self, request: worker_pb2.InspectRequest, context: Context
    ) -> worker_pb2.InspectResponse:
        """Raises `PermissionDeniedError` for a viewer that wants more than to look: it may not have
        connections opened, and logs are for operators."""
        is_more = bool(request.reach) or request.log_lines > 0
        if is_more and self._gate.identity(context).role is Role.VIEWER:  # guard: viewer
            raise PermissionDeniedError("a viewer's Inspect has neither reach nor log_lines")
        response = self._worker.inspect()
        if request.log_lines > 0:
            lines, last = LOG_TAIL.tail(request.log_lines, request.after_log_line)
            response.log.extend(lines)
            response.last_log_line = last
        if request.facts:
            response.facts.CopyFrom(process_facts(self._tls))
            response.facts.unreachable.update(await unreachable(request.reach[:MOST_REACHED]))
        return response


def alone_response(worker: Worker, tokens: Sequence[SampledToken]) -> facts_pb2.AnswerAloneResponse:
    """What `Worker.answer_alone` has returned, as a message."""
    response = facts_pb2.AnswerAloneResponse(exact=worker.context.spec.exact)
    for index, sampled in enumerate(tokens):
        response.tokens.add(
            index=index,
            token_id=sampled.token,
            logprob=sampled.logprob,
            top_logprobs=[
                sampling_pb2.TopLogprob(token_id=token, logprob=logprob)
                for token, logprob in sampled.top
            ],
        )
    return response
