"""The gRPC service for the cluster's other routers, at the listener for workers. They forward calls
about submissions that this router may have. It answers only for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc

from twolane.router.dispatch.drain_check import check_epoch
from twolane.router.doors.admin.own import OwnLooks
from twolane.router.router import Router
from twolane.rpc.call_gate import Context
from twolane.rpc.handlers import unary
from twolane.v1 import cluster_pb2, inference_pb2

PEERS = "twolane.v1.PeerService"


class PeerDoor:
    """`look` is the router's status with what its doors know, with each request's if that is true;
    `own` are the router's parts of other looks."""

    def __init__(
        self,
        router: Router,
        look: Callable[[bool], cluster_pb2.GetClusterStatusResponse],
        own: OwnLooks,
    ) -> None:
        self._router = router
        self._look = look
        self._own = own

    def handler(self) -> grpc.GenericRpcHandler:
        methods = {
            "GetClusterStatus": unary(cluster_pb2.GetClusterStatusRequest, self._get_status),
            "DrainWorker": unary(cluster_pb2.DrainWorkerRequest, self._drain_worker),
            "Cancel": unary(inference_pb2.CancelRequest, self._cancel),
            "FindSubmissions": unary(cluster_pb2.FindSubmissionsRequest, self._find),
            "Look": unary(cluster_pb2.LookRequest, self._answer_look),
            "PrepareConfig": unary(cluster_pb2.PrepareConfigRequest, self._prepare_config),
            "ApplyConfig": unary(cluster_pb2.ApplyConfigRequest, self._apply_config),
        }
        return grpc.method_handlers_generic_handler(PEERS, methods)

    async def _get_status(
        self, request: cluster_pb2.GetClusterStatusRequest, context: Context
    ) -> cluster_pb2.GetClusterStatusResponse:
        return self._look(not request.without_requests)

    async def _answer_look(
        self, request: cluster_pb2.LookRequest, context: Context
    ) -> cluster_pb2.LookResponse:
        answer = await self._own.answer(request.method, request.request)
        return cluster_pb2.LookResponse(response=answer)

    async def _drain_worker(
        self, request: cluster_pb2.DrainWorkerRequest, context: Context
    ) -> cluster_pb2.DrainWorkerResponse:
        """A ticket is taken when the worker's load report says so."""
        name, operations = request.worker_id, self._router.operations
        if request.forget:
            operations.forget_drain(name, request.expect_epoch)
            return cluster_pb2.DrainWorkerResponse()
        check_epoch(operations.member(name), request.expect_epoch)
        if request.take_ticket:
            operations.take_ticket(name, request.take_ticket)
        else:
            operations.drain(name, undo=request.undo, hand_over=request.hand_over)
        return cluster_pb2.DrainWorkerResponse()

    async def _prepare_config(
        self, request: cluster_pb2.PrepareConfigRequest, context: Context
    ) -> cluster_pb2.PrepareConfigResponse:
        configuration = self._router.operations.configuration
        configuration.prepare(request, asyncio.get_running_loop().time())
        return cluster_pb2.PrepareConfigResponse(revision=configuration.revision)

    async def _apply_config(
        self, request: cluster_pb2.ApplyConfigRequest, context: Context
    ) -> cluster_pb2.ApplyConfigResponse:
        configuration = self._router.operations.configuration
        if request.forget:
            configuration.forget(request.revision)
        else:
            configuration.apply(request.revision)
        return cluster_pb2.ApplyConfigResponse()

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
    """Cancel the tenant's request that `request` names. False if this router does not answer it."""
    if request.submission_id:
        return router.cancel_submission(request.submission_id, tenant=request.tenant)
    return router.cancel(request.request_id, tenant=request.tenant)
