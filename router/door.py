"""The router's three gRPC services, as thin as they can be."""

from __future__ import annotations

from contextlib import aclosing

import grpc

from router.handlers import Context, unary, unary_stream
from router.router import Router
from twolane.errors import InvalidRequestError
from twolane.v1 import cluster_pb2, inference_pb2

INFERENCE = "twolane.v1.InferenceService"
MEMBERSHIP = "twolane.v1.MembershipService"
ADMIN = "twolane.v1.AdminService"
NO_DEADLINE_S = 10 * 365 * 86_400.0  # gRPC's "none" may come as a very long time


class Door:
    """Clients, workers and operators come in here."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        size = self._router.config.limits.message_bytes
        services = {
            INFERENCE: {
                "Generate": unary_stream(inference_pb2.GenerateRequest, self._generate, size),
                "Cancel": unary(inference_pb2.CancelRequest, self._cancel, size),
                "ListModels": unary(inference_pb2.ListModelsRequest, self._list_models, size),
            },
            MEMBERSHIP: {
                "Announce": unary(cluster_pb2.AnnounceRequest, self._announce, size),
            },
            ADMIN: {
                "GetStatus": unary(cluster_pb2.GetStatusRequest, self._get_status, size),
                "DrainWorker": unary(cluster_pb2.DrainWorkerRequest, self._drain_worker, size),
                "ReportGone": unary(cluster_pb2.ReportGoneRequest, self._report_gone, size),
            },
        }
        return [
            grpc.method_handlers_generic_handler(name, methods)
            for name, methods in services.items()
        ]

    async def _generate(self, request: inference_pb2.GenerateRequest, context: Context) -> None:
        time_left_s = context.time_remaining()
        if time_left_s is not None and time_left_s > NO_DEADLINE_S:
            time_left_s = None
        async with aclosing(self._router.generate(request, time_left_s=time_left_s)) as answer:
            async for response in answer:
                await context.write(response)

    async def _cancel(
        self, request: inference_pb2.CancelRequest, context: Context
    ) -> inference_pb2.CancelResponse:
        if not request.request_id:
            raise InvalidRequestError("request_id is empty; name a request", field="request_id")
        return inference_pb2.CancelResponse(found=self._router.cancel(request.request_id))

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

    async def _announce(
        self, request: cluster_pb2.AnnounceRequest, context: Context
    ) -> cluster_pb2.AnnounceResponse:
        _check_announce(request)
        return self._router.announce(request)

    async def _get_status(
        self, request: cluster_pb2.GetStatusRequest, context: Context
    ) -> cluster_pb2.GetStatusResponse:
        return self._router.status()

    async def _drain_worker(
        self, request: cluster_pb2.DrainWorkerRequest, context: Context
    ) -> cluster_pb2.DrainWorkerResponse:
        self._router.drain(request.worker_id, undo=request.undo)
        return cluster_pb2.DrainWorkerResponse()

    async def _report_gone(
        self, request: cluster_pb2.ReportGoneRequest, context: Context
    ) -> cluster_pb2.ReportGoneResponse:
        if not request.epoch:
            raise InvalidRequestError("epoch is 0; name an incarnation", field="epoch")
        self._router.report_gone(request.epoch)
        return cluster_pb2.ReportGoneResponse()


def _check_announce(request: cluster_pb2.AnnounceRequest) -> None:
    """A worker that announces nonsense must not get requests."""
    worker = request.worker
    for name, value in (
        ("worker.worker_id", worker.worker_id),
        ("worker.epoch", worker.epoch),
        ("worker.endpoint", worker.endpoint),
    ):
        if not value:
            raise InvalidRequestError(f"{name} is empty", field=name)
    if request.leaving:
        return
    if not request.roles or not request.model:
        raise InvalidRequestError("roles and model must be set", field="roles")
    for name in ("n_pages", "page_tokens", "max_context_tokens", "vocab_size"):
        if getattr(request, name) < 1:
            raise InvalidRequestError(
                f"{name} is {getattr(request, name)}; at least 1 is needed", field=name
            )
