"""The worker's gRPC services: a few lines between a stream and the worker's core."""

from __future__ import annotations

from typing import Any

import grpc

from twolane.errors import UnimplementedError
from twolane.rpc.handlers import streams, unary
from twolane.rpc.link import GrpcLink
from twolane.v1 import transfer_pb2, worker_pb2
from worker.errors import RouterInUseError, StaleEpochError
from worker.worker import Worker

Context = Any  # grpc.aio.ServicerContext; the stubs leave half of it out

WORKER = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name
TRANSFER = transfer_pb2.DESCRIPTOR.services_by_name["TransferService"].full_name


class Services:
    """`twolane.v1.WorkerService` and `twolane.v1.TransferService`."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

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

    async def _session(self, context: Context) -> None:
        link: GrpcLink[worker_pb2.SessionResponse, worker_pb2.SessionRequest] = GrpcLink(context)
        try:
            await self._worker.serve_session(link)
        except StaleEpochError as error:
            link.close()
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except RouterInUseError as error:
            link.close()
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, str(error))
        finally:
            link.close()

    async def _connect(self, context: Context) -> None:
        link: GrpcLink[transfer_pb2.ConnectResponse, transfer_pb2.ConnectRequest]
        link = GrpcLink(context)
        try:
            has_lane = await self._worker.serve_peer(link)
        finally:
            link.close()
        if not has_lane:
            raise UnimplementedError("this worker does not decode")

    async def _inspect(
        self, request: worker_pb2.InspectRequest, context: Context
    ) -> worker_pb2.InspectResponse:
        return self._worker.inspect()
