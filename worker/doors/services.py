"""The worker's gRPC services: a few lines between a stream and the worker's core."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from twolane.errors import UnimplementedError
from twolane.rpc.handlers import streams, unary
from twolane.rpc.link import GrpcLink
from twolane.v1 import transfer_pb2, worker_pb2
from twolane.worker.errors import RouterInUseError, StaleEpochError
from twolane.worker.worker import Worker

Context = Any  # grpc.aio.ServicerContext, which the stubs describe only in part

WORKER = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name
TRANSFER = transfer_pb2.DESCRIPTOR.services_by_name["TransferService"].full_name


class Services:
    """`twolane.v1.WorkerService` and `twolane.v1.TransferService`."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._open: dict[GrpcLink[Any, Any], asyncio.Task[Any]] = {}
        self._finished: set[GrpcLink[Any, Any]] = set()
        self._none_open = asyncio.Event()
        self._none_open.set()

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """For `add_generic_rpc_handlers`."""
        methods = {
            WORKER: {
                "Session": streams(worker_pb2.SessionRequest, self._session),
                "Inspect": unary(worker_pb2.InspectRequest, self._inspect),
            },
            TRANSFER: {"Connect": streams(transfer_pb2.ConnectRequest, self._connect)},
        }
        generic = grpc.method_handlers_generic_handler
        return tuple(generic(service, named) for service, named in methods.items())

    async def finish(self, within_s: float) -> None:
        """End every stream once its queued messages are written. Raises `TimeoutError` if a peer
        has not read them within `within_s`."""
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
        left without an error, so that the peer gets status OK after the last message."""
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

    async def _inspect(
        self, request: worker_pb2.InspectRequest, context: Context
    ) -> worker_pb2.InspectResponse:
        return self._worker.inspect()
