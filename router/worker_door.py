"""The gRPC service for workers and the launcher, at a listener that clients do not reach."""

from __future__ import annotations

import grpc

from router.router import Router
from twolane.errors import InvalidRequestError
from twolane.rpc.call_gate import Context
from twolane.rpc.handlers import unary
from twolane.v1 import cluster_pb2

MEMBERSHIP = "twolane.v1.MembershipService"


class WorkerDoor:
    """Who comes in here is believed: a worker gets requests, a proof of death frees pages."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def handler(self) -> grpc.GenericRpcHandler:
        methods = {
            "Announce": unary(cluster_pb2.AnnounceRequest, self._announce),
            "ReportGone": unary(cluster_pb2.ReportGoneRequest, self._report_gone),
        }
        return grpc.method_handlers_generic_handler(MEMBERSHIP, methods)

    async def _announce(
        self, request: cluster_pb2.AnnounceRequest, context: Context
    ) -> cluster_pb2.AnnounceResponse:
        _check_announce(request)
        return self._router.announce(request)

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
