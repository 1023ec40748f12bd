"""What other routers of the cluster may ask, at the listener for workers: what they were asked, and
this one may have. It answers for itself alone."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from twolane.router.router import Router
from twolane.rpc.call_gate import Context
from twolane.rpc.handlers import unary
from twolane.v1 import cluster_pb2, inference_pb2

PEERS = "twolane.v1.PeerService"


class PeerDoor:
    """`look` is the router's status with what its doors know."""

    def __init__(
        self, router: Router, look: Callable[[], cluster_pb2.GetClusterStatusResponse]
    ) -> None:
        self._router = router
        self._look = look

    def handler(self) -> grpc.GenericRpcHandler:
        methods = {
            "GetClusterStatus": unary(cluster_pb2.GetClusterStatusRequest, self._get_status),
            "DrainWorker": unary(cluster_pb2.DrainWorkerRequest, self._drain_worker),
            "Cancel": unary(inference_pb2.CancelRequest, self._cancel),
            "FindSubmissions": unary(cluster_pb2.FindSubmissionsRequest, self._find),
        }
        return grpc.method_handlers_generic_handler(PEERS, methods)

    async def _get_status(
        self, request: cluster_pb2.GetClusterStatusRequest, context: Context
    ) -> cluster_pb2.GetClusterStatusResponse:
        return self._look()

    async def _drain_worker(
        self, request: cluster_pb2.DrainWorkerRequest, context: Context
    ) -> cluster_pb2.DrainWorkerResponse:
        self._router.drain(request.worker_id, undo=request.undo)
        return cluster_pb2.DrainWorkerResponse()

    async def _cancel(
        self, request: inference_pb2.CancelRequest, context: Context
    ) -> inference_pb2.CancelResponse:
        return inference_pb2.CancelResponse(found=cancel_here(self._router, request))

    async def _find(
        self, request: cluster_pb2.FindSubmissionsRequest, context: Context
    ) -> cluster_pb2.FindSubmissionsResponse:
        status = self._router.service_status(request.submission_ids, tenant=request.tenant)
        return cluster_pb2.FindSubmissionsResponse(submissions=status.submissions)


def cancel_here(router: Router, request: inference_pb2.CancelRequest) -> bool:
    """End the request that is named, of the tenant that is named, if this router answers it."""
    if request.submission_id:
        return router.cancel_submission(request.submission_id, tenant=request.tenant)
    return router.cancel(request.request_id, tenant=request.tenant)
