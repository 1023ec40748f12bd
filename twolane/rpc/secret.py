"""The cluster's secret: what routers, workers and the launcher show at each other's inner ports.

A server lets in who shows it, a caller shows it with every call:

    server = grpc.aio.server(interceptors=[SecretGate(secret)])
    await stub.Announce(request, metadata=shown(secret))

It is no encryption: beyond one machine, the network between routers and workers must be private.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from twolane.rpc.log_rate import LogRate

log = logging.getLogger(__name__)

METADATA_KEY = "twolane-cluster-secret"
MIN_SECRET_CHARS = 16
REFUSAL = "this port is for processes that show the cluster's secret (--secret-file)"
_OURS = "/twolane."  # health and reflection tell nothing that is worth a secret

Handler = Any  # grpc.RpcMethodHandler; generic in the stubs alone


def new_secret() -> str:
    """256 random bits, as text."""
    return secrets.token_hex(32)


def shown(secret: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a call to a `SecretGate`."""
    return ((METADATA_KEY, secret),)


class SecretGate(grpc.aio.ServerInterceptor):
    """Ends calls to our services that lack the secret with UNAUTHENTICATED, before any of their
    messages is read. `refused` counts them by method; the log gets a line in ten seconds."""

    def __init__(self, secret: str) -> None:
        assert len(secret) >= MIN_SECRET_CHARS
        self.refused: Counter[str] = Counter()
        self._secret = secret.encode()
        self._log_rate = LogRate()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        details: grpc.HandlerCallDetails,
    ) -> Handler:
        if not details.method.startswith(_OURS) or self._knows(details):  # guard: secret
            return await continuation(details)
        self.refused[details.method.rpartition("/")[2]] += 1

        async def refuse(requests: object, context: Any) -> None:
            self._log(details.method, context.peer())
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, REFUSAL)

        # of this kind whatever the method is: it is called without waiting for a message
        return grpc.stream_stream_rpc_method_handler(refuse)

    def _knows(self, details: grpc.HandlerCallDetails) -> bool:
        for key, value in details.invocation_metadata:
            if key == METADATA_KEY:
                given = value.encode() if isinstance(value, str) else value
                return hmac.compare_digest(given, self._secret)
        return False

    def _log(self, method: str, peer: str) -> None:
        n = self._log_rate.take("refused", asyncio.get_running_loop().time())
        if n:
            text = "refused %d calls without the cluster's secret; the last: %s from %s"
            log.warning(text, n, method, peer)
