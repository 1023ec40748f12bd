"""Lets an operator or viewer open the console in a browser."""

from __future__ import annotations

import time
from collections.abc import Mapping

from twolane.errors import UnavailableError
from twolane.rpc.call_gate import Context
from twolane.rpc.handlers import Handler, unary
from twolane.security.console_tokens import ConsoleTokens
from twolane.security.gate import Gate
from twolane.v1 import admin_pb2


class ConsoleAccess:
    """Of one listener. `url` is of the console, empty where the router has no HTTP door."""

    def __init__(self, tokens: ConsoleTokens, url: str, gate: Gate) -> None:
        self._tokens = tokens
        self._url = url
        self._gate = gate

    def methods(self) -> Mapping[str, Handler]:
        return {"OpenConsole": unary(admin_pb2.OpenConsoleRequest, self._open)}

    async def _open(
        self, request: admin_pb2.OpenConsoleRequest, context: Context
    ) -> admin_pb2.OpenConsoleResponse:
        if not self._url:
            raise UnavailableError("this router has no HTTP door (--http-port)")
        token, until = self._tokens.issue(self._gate.identity(context), time.time())
        return admin_pb2.OpenConsoleResponse(url=self._url, token=token, valid_until=until)
