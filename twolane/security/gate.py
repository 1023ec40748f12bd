"""The gate of each listener: authenticates the caller and checks that its role may call the method.

    call ──> identity ──> roles of the method ──> handler
              │             └─ PERMISSION_DENIED
              └─ UNAUTHENTICATED

    gate = Gate("worker door", is_private=True, secret=secret)
    server = grpc.aio.server(interceptors=[gate])
    identity = gate.identity(context)           in a handler

The messages of a refused call are never read.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

import grpc

from twolane.errors import (
    InternalError,
    PermissionDeniedError,
    TwolaneError,
    UnauthenticatedError,
)
from twolane.rpc import errors as rpc_errors
from twolane.rpc.log_rate import LogRate
from twolane.rpc.secret import METADATA_KEY, MIN_SECRET_CHARS
from twolane.security.access import GRPC_LOCAL, GRPC_OPEN, GRPC_ROLES
from twolane.security.identity import Identity, Role, parse_identity
from twolane.security.nobody import is_nobody
from twolane.security.tls import spiffe_uri

log = logging.getLogger(__name__)

AUTHORIZATION = "authorization"
_BEARER = "bearer "

Context = Any  # grpc.aio.ServicerContext; the stubs leave half of it out
Handler = Any  # grpc.RpcMethodHandler; generic only in the stubs
KeyCheck = Callable[[str], Identity]  # an API key's caller; raises UnauthenticatedError


class Gate(grpc.aio.ServerInterceptor):
    """Authenticates the callers of one listener and refuses what `GRPC_ROLES` does not allow. An
    exception that a handler does not expect becomes an `InternalError` of that call alone.

    A caller is identified by its certificate; else by its API key, if there are `keys`; else it is
    `Role.LOCAL` if it presents the cluster's `secret`; else it is `anonymous`. The last two are
    accepted only at a listener that `is_private`: that no other machine can reach, or for which the
    operator has set `--insecure`. `refused` counts calls as `unauthenticated.Announce`,
    `denied.Announce`.
    """

    def __init__(
        self,
        listener: str,
        *,
        is_private: bool,
        secret: str = "",
        anonymous: Identity | None = None,
        keys: KeyCheck | None = None,
    ) -> None:
        assert not secret or len(secret) >= MIN_SECRET_CHARS
        self.listener = listener
        self.refused: Counter[str] = Counter()
        self._is_private = is_private
        self._secret = secret.encode()
        self._anonymous = anonymous
        self._keys = keys
        self._guarded: dict[str, Handler] = {}  # by method
        self._log_rate = LogRate()

    def identity(self, context: Context) -> Identity:
        """The caller's identity. Raises `UnauthenticatedError` if its credentials are not
        accepted."""
        uris, certs = map(context.auth_context().get, ("peer_spiffe_id", "x509_pem_cert"))
        shown = _metadata(context)
        return self.identify(
            uri=uris[0].decode() if uris else None,
            has_certificate=bool(certs) and not is_nobody(certs[0]),
            authorization=shown.get(AUTHORIZATION),
            secret=shown.get(METADATA_KEY),
        )

    def identify(
        self,
        *,
        uri: str | None = None,
        has_certificate: bool = False,
        authorization: str | None = None,
        secret: str | None = None,
    ) -> Identity:
        """The identity for the given certificate, authorization header or secret.

        Raises `UnauthenticatedError` if these are not accepted here. A caller with invalid
        credentials is refused even where one without credentials is allowed.
        """
        if uri is not None or has_certificate:
            return _of_certificate(uri or "")
        if authorization is not None and self._keys is not None:
            return self._keys(_bearer(authorization))
        if secret is not None and self._secret and self._is_private:
            if not hmac.compare_digest(secret.encode(), self._secret):  # guard: secret
                raise UnauthenticatedError("this is the secret of another cluster (--secret-file)")
            return Identity(Role.LOCAL)
        if self._anonymous is not None and self._is_private:
            return self._anonymous
        raise UnauthenticatedError(f"{self.listener}: {self._wanted()}")

    def check(self, method: str, identify: Callable[[], Identity]) -> None:
        """Check a call of the gRPC method `/service/name`: see `admit`."""
        if method in GRPC_OPEN or (self._is_private and method in GRPC_LOCAL):
            return
        roles = GRPC_ROLES.get(method, frozenset())
        self.admit(method.rpartition("/")[2], roles, identify)

    def admit(
        self, name: str, roles: Collection[Role], identify: Callable[[], Identity]
    ) -> Identity:
        """The caller that `identify` returns, if it has one of these roles.

        Raises `UnauthenticatedError` or `PermissionDeniedError`, and counts the refusal under
        `name`.
        """
        try:
            caller = identify()
        except UnauthenticatedError:
            self.refused[f"unauthenticated.{name}"] += 1
            raise
        if caller.role not in roles:  # guard: roles
            self.refused[f"denied.{name}"] += 1
            allowed = ", ".join(sorted(role for role in roles if role is not Role.LOCAL))
            raise PermissionDeniedError(
                f"{caller} may not call {name}; that is for: {allowed or 'nobody'}",
                metadata={"caller": str(caller), "method": name},
            )
        return caller

    def admit_http(
        self,
        name: str,
        roles: Collection[Role],
        certificate: Mapping[str, Any] | None,
        headers: Mapping[str, str],
    ) -> Identity:
        """See `admit`. `certificate` is the caller's, as `ssl` decodes it; None if there is
        none."""

        def identify() -> Identity:
            return self.identify(
                uri=spiffe_uri(certificate),
                has_certificate=certificate is not None,
                authorization=headers.get(AUTHORIZATION),
            )

        return self.admit(name, roles, identify)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        details: grpc.HandlerCallDetails,
    ) -> Handler:
        method = details.method
        guarded = self._guarded.get(method)
        if guarded is None:
            handler = await continuation(details)
            if handler is None:  # callers choose these names, so they are not stored
                return self._guard(method, _NO_METHOD)
            guarded = self._guarded[method] = self._guard(method, handler)
        return guarded

    def _guard(self, method: str, handler: Handler) -> Handler:
        """Wrap `handler` with the check. All our handlers are streaming handlers, so gRPC reads no
        message before the check (`twolane.rpc.handlers`)."""
        assert handler.stream_stream is not None, f"{method} was not made by twolane.rpc.handlers"
        serve = handler.stream_stream

        async def guarded(requests: object, context: Context) -> None:
            try:
                if handler is _NO_METHOD:
                    self.identity(context)
                else:
                    self.check(method, lambda: self.identity(context))
            except TwolaneError as error:
                self._log(method, context.peer(), error)
                await rpc_errors.end_call(context, error)
            else:
                try:
                    await serve(requests, context)
                except grpc.aio.AbortError:  # the handler has answered
                    raise
                except Exception as error:  # noqa: BLE001 - any error ends only this call
                    await rpc_errors.end_call(context, self._fault(method, error))

        return grpc.stream_stream_rpc_method_handler(
            guarded, handler.request_deserializer, handler.response_serializer
        )

    def _fault(self, method: str, error: Exception) -> InternalError:
        """What the caller is told of an exception that no handler expects. It has the system's own
        words, or the kind of the exception: its text may quote another caller. The log has all."""
        log.error("%s could not answer %s", self.listener, method, exc_info=error)
        name = method.rpartition("/")[2]
        why = (isinstance(error, OSError) and error.strerror) or type(error).__name__
        return InternalError(
            f"{self.listener} could not answer {name} ({why}); the log of its process has the "
            "traceback",
            metadata={"method": name, "listener": self.listener},
        )

    def _wanted(self) -> str:
        """Which credentials would be accepted here, for an error message."""
        if not self._is_private:
            return "present a certificate" + (" or an API key" if self._keys else "")
        if self._keys is not None:
            return (
                "present an API key, as `authorization: Bearer tl_…`; twolane's clients send the "
                "one in TWOLANE_API_KEY"
            )
        return "only processes that present the cluster's secret may call this (--secret-file)"

    def _log(self, method: str, peer: str, error: TwolaneError) -> None:
        n = self._log_rate.take(error.reason, asyncio.get_running_loop().time())
        if n:
            text = "%s refused %d calls; the last: %s from %s: %s"
            log.warning(text, self.listener, n, method, peer, error.message)


async def _abort_no_method(requests: object, context: Context) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")  # as gRPC does


_NO_METHOD: Handler = grpc.stream_stream_rpc_method_handler(_abort_no_method)


def _of_certificate(uri: str) -> Identity:
    """The identity in a certificate. Raises `UnauthenticatedError` if it names none of our
    roles."""
    try:
        return parse_identity(uri)
    except ValueError as error:
        raise UnauthenticatedError(
            f"the certificate names no role ({error}); `twolane certs issue` makes one that does"
        ) from None


def _bearer(authorization: str) -> str:
    if not authorization.lower().startswith(_BEARER):
        raise UnauthenticatedError("authorization must be: Bearer KEY")
    return authorization[len(_BEARER) :].strip()


def _metadata(context: Context) -> dict[str, str]:
    """The credentials in a call's metadata; the first value of a key that occurs twice."""
    shown: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        if key in (AUTHORIZATION, METADATA_KEY) and isinstance(value, str):
            shown.setdefault(key, value)
    return shown
