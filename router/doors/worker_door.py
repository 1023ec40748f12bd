"""The gRPC service for workers, agents and controllers, at its own listener."""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import unquote

import grpc

from twolane.errors import InvalidRequestError, PermissionDeniedError
from twolane.router.members.membership import (
    ForeignEpochError,
    NameTakenError,
    RetiredEpochError,
)
from twolane.router.router import Router
from twolane.rpc.call_gate import Context
from twolane.rpc.handlers import unary
from twolane.rpc.listen import host_of, is_loopback, is_unspecified
from twolane.rpc.log_rate import LogRate
from twolane.security.gate import Gate
from twolane.security.identity import Identity, Role
from twolane.v1 import cluster_pb2

log = logging.getLogger(__name__)

MEMBERSHIP = "twolane.v1.MembershipService"
CODE = grpc.StatusCode
OFF = "C"  # class of proof: the host was switched off


class WorkerDoor:
    """Callers here are trusted: a worker gets requests, and a proof of death frees pages. `gate` is
    the gate of its server."""

    def __init__(self, router: Router, gate: Gate) -> None:
        self._router = router
        self._gate = gate
        self._log_rate = LogRate()

    def handler(self) -> grpc.GenericRpcHandler:
        methods = {
            "Announce": unary(cluster_pb2.AnnounceRequest, self._announce),
            "ReportGone": unary(cluster_pb2.ReportGoneRequest, self._report_gone),
            "Supervise": unary(cluster_pb2.SuperviseRequest, self._supervise),
        }
        return grpc.method_handlers_generic_handler(MEMBERSHIP, methods)

    async def _announce(
        self, request: cluster_pb2.AnnounceRequest, context: Context
    ) -> cluster_pb2.AnnounceResponse:
        _check_announce(request)
        check_endpoint(request.worker.endpoint, context.peer())
        _check_name(request, self._gate.identity(context))
        try:
            return self._router.announce(request)
        except (NameTakenError, RetiredEpochError) as error:
            self._log(request.worker.epoch, error)
            is_final = isinstance(error, RetiredEpochError)
            code = CODE.FAILED_PRECONDITION if is_final else CODE.ALREADY_EXISTS
            await context.abort(code, str(error))
            raise AssertionError("abort raises") from error

    async def _report_gone(
        self, request: cluster_pb2.ReportGoneRequest, context: Context
    ) -> cluster_pb2.ReportGoneResponse:
        if not request.epoch:
            raise InvalidRequestError("epoch is 0; name an incarnation", field="epoch")
        caller = self._gate.identity(context)
        try:
            self._router.operations.report_gone(request.epoch, host=_host_of_proof(caller, request))
        except ForeignEpochError as error:
            raise PermissionDeniedError(str(error)) from error
        log.info(
            "%s reports epoch %016x gone: class %s", caller, request.epoch, request.proof_class
        )
        return cluster_pb2.ReportGoneResponse()

    async def _supervise(
        self, request: cluster_pb2.SuperviseRequest, context: Context
    ) -> cluster_pb2.SuperviseResponse:
        now = asyncio.get_running_loop().time()
        self._router.known.hear(request.routers, now)
        return self._router.operations.supervise(request)

    def _log(self, epoch: int, error: Exception) -> None:
        n = self._log_rate.take(epoch, asyncio.get_running_loop().time())
        if n:
            log.warning("refused %d announces: %s", n, error)


def _host_of_proof(caller: Identity, request: cluster_pb2.ReportGoneRequest) -> str | None:
    """The host whose epochs the caller may report; None: any. An agent may report only its own
    host's, a controller only those of hosts that were switched off. Raises
    `PermissionDeniedError`."""
    if caller.role is Role.AGENT:  # guard: an agent's host
        return caller.name
    if caller.role is Role.CONTROLLER and request.proof_class != OFF:  # guard: a controller's proof
        raise PermissionDeniedError(
            f"{caller} reports a proof of class {request.proof_class or 'none'}: a controller may "
            "report only class C; agents report the others"
        )
    return request.host or None if request.proof_class != OFF else None


def check_endpoint(endpoint: str, caller: str) -> None:
    """Refuse a worker on another host that announces an address which we cannot dial. `caller` is
    its address in gRPC's form (ipv4:10.0.0.7:4711). Raises `InvalidRequestError`."""
    kind, _, address = unquote(caller).partition(":")
    if not kind.startswith("ip") or is_loopback(host_of(address)):
        return
    if is_loopback(host_of(endpoint)) or is_unspecified(host_of(endpoint)):
        raise InvalidRequestError(
            f"the worker announces itself at {endpoint} and calls from {host_of(address)}: set its "
            "advertise_host (--advertise-host) to an address of its host",
            field="worker.endpoint",
        )


def _check_name(request: cluster_pb2.AnnounceRequest, caller: Identity) -> None:
    """Refuse a worker that announces another worker. Raises `PermissionDeniedError`."""
    worker_id = request.worker.worker_id
    if caller.role is Role.WORKER and caller.name != worker_id:  # guard: worker name
        raise PermissionDeniedError(
            f"{caller} may not announce {worker_id}: the certificate is for another worker",
            metadata={"caller": str(caller), "worker_id": worker_id},
        )


def _check_announce(request: cluster_pb2.AnnounceRequest) -> None:
    """Refuse an invalid announce. Raises `InvalidRequestError`."""
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
