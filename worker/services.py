"""The worker's gRPC services: a few lines between a stream and the worker's core."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message import DecodeError

from twolane import errors
from twolane.rpc.errors import abort
from twolane.rpc.link import GrpcLink
from twolane.v1 import transfer_pb2, transfer_pb2_grpc, worker_pb2, worker_pb2_grpc
from worker.errors import StaleEpochError
from worker.worker import Worker

Context = grpc.aio.ServicerContext[Any, Any]


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """`twolane.v1.WorkerService`."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def Session(self, request_iterator: object, context: Context) -> None:
        link: GrpcLink[worker_pb2.SessionResponse, worker_pb2.SessionRequest] = GrpcLink(context)
        try:
            await self._worker.serve_session(link)
        except StaleEpochError as error:
            link.close()
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except errors.InvalidRequestError as error:
            link.close()
            await abort(context, error)
        except DecodeError as error:
            link.close()
            await abort(context, errors.InvalidRequestError(f"not a message: {error}"))
        finally:
            link.close()

    async def Inspect(
        self, request: worker_pb2.InspectRequest, context: Context
    ) -> worker_pb2.InspectResponse:
        return self._worker.inspect()


class TransferServicer(transfer_pb2_grpc.TransferServiceServicer):
    """`twolane.v1.TransferService`."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def Connect(self, request_iterator: object, context: Context) -> None:
        link: GrpcLink[transfer_pb2.ConnectResponse, transfer_pb2.ConnectRequest]
        link = GrpcLink(context)
        try:
            has_lane = await self._worker.serve_peer(link)
        except DecodeError as error:
            link.close()
            await abort(context, errors.InvalidRequestError(f"not a message: {error}"))
        finally:
            link.close()
        if not has_lane:
            await abort(context, errors.UnimplementedError("this worker does not decode"))
