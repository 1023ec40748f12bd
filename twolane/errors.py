"""Every error that twolane raises at a user, as a tree.

    TwolaneError
    ├── InvalidRequestError        INVALID_ARGUMENT     the request can never succeed as it is
    │   └── InvalidParameterError                       one field: name, value, bound
    ├── UnauthenticatedError       UNAUTHENTICATED      show a certificate or key that counts here
    ├── PermissionDeniedError      PERMISSION_DENIED    this caller may not do that here
    ├── DuplicateRequestError      ALREADY_EXISTS       that request id is in use
    ├── PreconditionError          FAILED_PRECONDITION  what it names is not as the caller thinks
    ├── UnknownModelError          NOT_FOUND            no worker serves that model
    ├── UnknownSubmissionError     NOT_FOUND            nothing of that answer is left to resume
    ├── TakenOverError             ABORTED              another router has the request
    ├── OverloadedError            RESOURCE_EXHAUSTED   come back after `retry_after_s`
    │   └── QuotaError                                  the caller's own quota is used up
    ├── DeadlineError              DEADLINE_EXCEEDED    the deadline passed, or cannot be met
    ├── CancelledError             CANCELLED            the caller, or an operator, cancelled it
    ├── UnavailableError           UNAVAILABLE          nobody can serve it now; retrying may help
    ├── UnimplementedError         UNIMPLEMENTED        the field is reserved for a later version
    └── InternalError              INTERNAL             our bug: please report it, with the details

Each carries the gRPC status that stands beside it, a stable `reason` (google.rpc.ErrorInfo.reason)
and `metadata`. `twolane.rpc.errors` is the one place that turns them into a status and back,
`twolane.router.doors.http.errors` the one that turns them into HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping

# What a client sent is said back, but not all of it. An error has to fit into gRPC's 8 KiB of
# trailers, where each byte of a message that is not ASCII takes three, and again four thirds in
# each detail that repeats it.
MAX_TEXT_BYTES = 1000
MAX_FIGURE_BYTES = 200


def short(text: str, most_bytes: int = MAX_TEXT_BYTES) -> str:
    """Its beginning, where it is too long, in UTF-8, to be read."""
    raw = text.encode(errors="replace")
    if len(raw) <= most_bytes:
        return text
    return raw[: most_bytes - len("…".encode())].decode(errors="ignore") + "…"


class TwolaneError(Exception):
    """Root of the tree. `reason` is machine-readable; `metadata` holds the message's figures."""

    reason = "TWOLANE_ERROR"

    def __init__(self, message: str, *, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(short(message))
        self.message = short(message)
        self.metadata: dict[str, str] = {
            name: short(text, MAX_FIGURE_BYTES) for name, text in (metadata or {}).items()
        }


class InvalidRequestError(TwolaneError):
    """The request can never succeed as it is. `field` is a path into the request, where known."""

    reason = "INVALID_REQUEST"

    def __init__(
        self, message: str, *, field: str = "", metadata: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message, metadata=metadata)
        self.field = field


class InvalidParameterError(InvalidRequestError):
    """One parameter is out of its bound: says which, what it was, and what it may be."""

    reason = "INVALID_PARAMETER"

    def __init__(self, name: str, value: object, bound: str) -> None:
        super().__init__(
            f"{name} is {value!r}; it must be {bound}",
            field=name,
            metadata={"value": str(value)[:200], "bound": bound},
        )


class UnauthenticatedError(TwolaneError):
    """The caller showed neither a certificate nor a key, or one that does not count here: of
    another authority, expired, revoked, unknown."""

    reason = "UNAUTHENTICATED"


class PermissionDeniedError(TwolaneError):
    """This caller may not do that here (an operator's call from elsewhere, a proxy that wants
    credentials). The same call may succeed from another place."""

    reason = "PERMISSION_DENIED"


class DuplicateRequestError(TwolaneError):
    """A request with the same `request_id` is running."""

    reason = "DUPLICATE_REQUEST"


class PreconditionError(TwolaneError):
    """What the caller wants to change is not as it thinks: the worker was started again, or the
    ticket of its drain was taken. Look again."""

    reason = "NOT_AS_EXPECTED"


class UnknownModelError(TwolaneError):
    """No worker of this cluster serves the model that was asked for."""

    reason = "UNKNOWN_MODEL"


class UnknownSubmissionError(TwolaneError):
    """An answer cannot be resumed: no worker has its rows any more, or they are somebody else's.
    Ask again with what is there of it."""

    reason = "UNKNOWN_SUBMISSION"


class TakenOverError(TwolaneError):
    """The request is another router's now, at which its client, or one with the same key, has asked
    for it later."""

    reason = "TAKEN_OVER"


class OverloadedError(TwolaneError):
    """Refused to protect running requests. Retry after `retry_after_s` seconds."""

    reason = "OVERLOADED"

    def __init__(
        self, message: str, *, retry_after_s: float, metadata: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message, metadata=metadata)
        self.retry_after_s = retry_after_s


class QuotaError(OverloadedError):
    """The tenant's quota is used up: `metadata["quota"]` is requests, tokens or concurrent."""

    reason = "QUOTA_EXCEEDED"


class DeadlineError(TwolaneError):
    """The request's deadline passed; what was generated before has been streamed already."""

    reason = "DEADLINE_EXCEEDED"


class CancelledError(TwolaneError):
    """The request was cancelled: by `cancel()`, by a lost client, or by an operator."""

    reason = "CANCELLED"


class UnavailableError(TwolaneError):
    """Nobody can serve the request now (no worker, connection lost). Retrying may help."""

    reason = "UNAVAILABLE"


class UnimplementedError(TwolaneError):
    """The request uses a field that this version accepts on the wire but does not implement."""

    reason = "UNIMPLEMENTED"


class InternalError(TwolaneError):
    """A bug of twolane, or a fault confined to this request (for example NaN logits)."""

    reason = "INTERNAL"
