"""This router's own answers to operators' queries, by method: for its admin door, and for other
routers that merge them into theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from google.protobuf.message import Message

from twolane.errors import UnimplementedError
from twolane.router.operators.configuration import Configuration
from twolane.router.router import Router
from twolane.rpc.handlers import parse
from twolane.rpc.log_file import LINES
from twolane.rpc.log_tail import LOG_TAIL
from twolane.security.process_facts import process_facts
from twolane.security.tls import TlsFiles
from twolane.v1 import acts_pb2, admin_pb2


class OwnLooks:
    """The answers of one router; `tls` are its certificate files."""

    def __init__(self, router: Router, tls: TlsFiles | None = None) -> None:
        self._router = router
        self._tls = tls
        self._parts: dict[str, tuple[type[Message], Callable[..., Awaitable[Message]]]] = {
            "ListRequests": (admin_pb2.ListRequestsRequest, self._list_requests),
            "GetRequest": (admin_pb2.GetRequestRequest, self._get_request),
            "ListEvents": (admin_pb2.ListEventsRequest, self._list_events),
            "ReadLog": (acts_pb2.ReadLogRequest, self.read_log),
            "GetPages": (admin_pb2.GetPagesRequest, self._check),
            "Diagnose": (admin_pb2.DiagnoseRequest, self.facts),
            "GetConfig": (admin_pb2.GetConfigRequest, self._config),
        }

    async def answer(self, method: str, raw: bytes) -> bytes:
        """Answer a query of another router. Raises `UnimplementedError` for an unknown method."""
        if method not in self._parts:
            raise UnimplementedError(f"this router knows no look {method[:50]!r}")
        request_type, part = self._parts[method]
        return (await part(parse(request_type, raw))).SerializeToString()

    async def _list_requests(
        self, request: admin_pb2.ListRequestsRequest
    ) -> admin_pb2.ListRequestsResponse:
        return self._router.operations.requests.page(request)

    async def _get_request(
        self, request: admin_pb2.GetRequestRequest
    ) -> admin_pb2.GetRequestResponse:
        return self._router.operations.requests.find(request)

    async def _list_events(
        self, request: admin_pb2.ListEventsRequest
    ) -> admin_pb2.ListEventsResponse:
        return self._router.operations.events.page(request)

    async def _config(self, request: admin_pb2.GetConfigRequest) -> admin_pb2.GetConfigResponse:
        found = own_config(self._router.operations.configuration, request)
        found.router_id = self._router.config.router_id
        return found

    async def facts(self, request: admin_pb2.DiagnoseRequest) -> admin_pb2.DiagnoseResponse:
        """The facts of this router's process."""
        name = self._router.config.router_id
        its = admin_pb2.NamedFacts(name=name, facts=process_facts(self._tls))
        return admin_pb2.DiagnoseResponse(processes=[its])

    async def read_log(self, request: acts_pb2.ReadLogRequest) -> acts_pb2.ReadLogResponse:
        """The log of this router; empty if the request names another one."""
        if request.name != self._router.address.router_id:
            return acts_pb2.ReadLogResponse()
        source = f"{request.name} {self._router.address.router_epoch:016x}"
        after = request.after_line if request.source == source else 0
        lines, last = LOG_TAIL.tail(request.lines or LINES, after)
        return acts_pb2.ReadLogResponse(lines=lines, last_line=last, source=source)

    async def _check(self, request: admin_pb2.GetPagesRequest) -> admin_pb2.GetPagesResponse:
        """Check whether this router's tables are consistent. Its workers are left out: the calling
        router has the same ones."""
        await asyncio.sleep(0)  # let other events run first
        result = admin_pb2.IntegrityResult(router_id=self._router.config.router_id)
        try:
            self._router.check_integrity()
        except AssertionError as broken:
            result.error = str(broken) or "a law of its tables is broken"
        return admin_pb2.GetPagesResponse(routers=[result])


def own_config(
    configuration: Configuration, request: admin_pb2.GetConfigRequest
) -> admin_pb2.GetConfigResponse:
    """One router's settings."""
    return admin_pb2.GetConfigResponse(
        fields=configuration.fields(request.names),
        revision=configuration.revision,
        without_controllers=not configuration.knows_controllers,
    )
