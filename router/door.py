"""The gRPC services that clients and operators see, as thin as they can be.

Whoever reaches this door may ask for answers and look; what moves workers is for the machine's own.
"""

from __future__ import annotations

from contextlib import aclosing
from ipaddress import IPv6Address, ip_address
from urllib.parse import unquote

import grpc

from router.router import Router
from twolane.errors import InvalidRequestError, PermissionDeniedError
from twolane.rpc.call_gate import CallGate, Context
from twolane.rpc.handlers import unary, unary_stream
from twolane.v1 import cluster_pb2, inference_pb2

INFERENCE = "twolane.v1.InferenceService"
ADMIN = "twolane.v1.AdminService"


class Door:
    """Clients and operators come in here. Workers: `router.worker_door`."""

    def __init__(self, router: Router, *, http_endpoint: str = "") -> None:
        """`http_endpoint`: the other door, for whoever asks for the status."""
        self._router = router
        self._http_endpoint = http_endpoint

    def handlers(self, gate: CallGate) -> list[grpc.GenericRpcHandler]:
        services = {
            INFERENCE: {
                "Generate": unary_stream(
                    inference_pb2.GenerateRequest, self._generate, gate, check=self._check_room
                ),
                "Cancel": unary(inference_pb2.CancelRequest, self._cancel, gate),
                "ListModels": unary(inference_pb2.ListModelsRequest, self._list_models, gate),
            },
            ADMIN: {
                "GetStatus": unary(cluster_pb2.GetStatusRequest, self._get_status, gate),
                "DrainWorker": unary(cluster_pb2.DrainWorkerRequest, self._drain_worker, gate),
            },
        }
        return [
            grpc.method_handlers_generic_handler(name, methods)
            for name, methods in services.items()
        ]

    def _check_room(self, context: Context) -> None:
        self._router.check_room(time_left_s=context.time_remaining())

    async def _generate(self, request: inference_pb2.GenerateRequest, context: Context) -> None:
        time_left_s = context.time_remaining()
        async with aclosing(self._router.generate(request, time_left_s=time_left_s)) as answer:
            async for response in answer:
                await context.write(response)

    async def _cancel(
        self, request: inference_pb2.CancelRequest, context: Context
    ) -> inference_pb2.CancelResponse:
        if bool(request.request_id) == bool(request.submission_id):
            text = "name a request by request_id or by submission_id, one of the two"
            raise InvalidRequestError(text, field="request_id")
        if request.submission_id:
            found = self._router.cancel_submission(request.submission_id)
        else:
            found = self._router.cancel(request.request_id, tenant=request.tenant)
        return inference_pb2.CancelResponse(found=found)

    async def _list_models(
        self, request: inference_pb2.ListModelsRequest, context: Context
    ) -> inference_pb2.ListModelsResponse:
        return inference_pb2.ListModelsResponse(
            models=[
                inference_pb2.Model(
                    name=model.name,
                    fingerprint=model.fingerprint,
                    max_context_tokens=model.max_context_tokens,
                    vocab_size=model.vocab_size,
                )
                for model in self._router.models()
            ]
        )

    async def _get_status(
        self, request: cluster_pb2.GetStatusRequest, context: Context
    ) -> cluster_pb2.GetStatusResponse:
        status = self._router.status()
        status.http_endpoint = self._http_endpoint
        return status

    async def _drain_worker(
        self, request: cluster_pb2.DrainWorkerRequest, context: Context
    ) -> cluster_pb2.DrainWorkerResponse:
        if not is_loopback(context.peer()):
            text = "workers are drained over the loopback of the router's machine alone; this "
            text += f"call came from {context.peer()}"
            raise PermissionDeniedError(text)
        self._router.drain(request.worker_id, undo=request.undo)
        return cluster_pb2.DrainWorkerResponse()


def is_loopback(peer: str) -> bool:
    """Whether gRPC's name of a peer is of this machine: `ipv4:127.0.0.1:5`, `ipv6:%5B::1%5D:5`."""
    kind, _, address = peer.partition(":")
    if kind == "unix":
        return True
    if kind not in ("ipv4", "ipv6"):
        return False
    host = ip_address(unquote(address).rpartition(":")[0].strip("[]"))
    mapped = host.ipv4_mapped if isinstance(host, IPv6Address) else None
    return (mapped or host).is_loopback
