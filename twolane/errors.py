"""All errors that twolane raises to its users, as a tree.

    TwolaneError
    ├── InvalidRequestError        INVALID_ARGUMENT     the request is invalid and can never succeed
    │   └── InvalidParameterError                       one field: name, value, bound
    ├── UnauthenticatedError       UNAUTHENTICATED      no valid certificate or API key
    ├── PermissionDeniedError      PERMISSION_DENIED    this caller may not do that here
    ├── DuplicateRequestError      ALREADY_EXISTS       that request id is in use
    ├── PreconditionError          FAILED_PRECONDITION  the object has changed meanwhile
    ├── UnknownModelError          NOT_FOUND            no worker serves that model
    ├── UnknownSubmissionError     NOT_FOUND            that answer cannot be resumed
    ├── TakenOverError             ABORTED              another router has the request
    ├── OverloadedError            RESOURCE_EXHAUSTED   retry after `retry_after_s`
    │   └── QuotaError                                  the caller's own quota is used up
    ├── DeadlineError              DEADLINE_EXCEEDED    the deadline passed, or cannot be met
    ├── CancelledError             CANCELLED            the caller, or an operator, cancelled it
    ├── UnavailableError           UNAVAILABLE          it cannot be served now; retrying may help
    ├── UnimplementedError         UNIMPLEMENTED        the field is reserved for a later version
    └── InternalError              INTERNAL             our bug: please report it, with the details

Each has the gRPC status beside it, a stable `reason` (google.rpc.ErrorInfo.reason) and `metadata`.
Only `twolane.rpc.errors` translates them to a status and back; only
`twolane.router.doors.http.errors` translates them to HTTP.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

# Errors quote what a client sent, but not all of it. An error must fit into gRPC's 8 KiB of
# trailers, where each non-ASCII byte of a message takes three bytes, and 4/3 bytes more in each
# detail that repeats it.
MAX_TEXT_BYTES = 1000
MAX_FIGURE_BYTES = 200
_MOST_NAMED = 8  # workers, by an error


def short(text: str, most_bytes: int = MAX_TEXT_BYTES) -> str:
    """`text`, or its beginning if it has more than `most_bytes` bytes in UTF-8."""
    raw = text.encode(errors="replace")
    if len(raw) <= most_bytes:
        return text
    return raw[: most_bytes - len("…".encode())].decode(errors="ignore") + "…"


class TwolaneError(Exception):
    """The root of the tree. `reason` is machine-readable; `metadata` has the figures in the
    message."""

    reason = "TWOLANE_ERROR"

    def __init__(self, message: str, *, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(short(message))
        self.message = short(message)
        self.metadata: dict[str, str] = {
            name: short(text, MAX_FIGURE_BYTES) for name, text in (metadata or {}).items()
        }


class InvalidRequestError(TwolaneError):
    """The request is invalid and can never succeed. `field` is a path into the request, if
    known."""

    reason = "INVALID_REQUEST"

    def __init__(
        self, message: str, *, field: str = "", metadata: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message, metadata=metadata)
        self.field = field


def no_worker(name: str, known: Collection[str]) -> InvalidRequestError:
    """No worker has that name; the text names some that are known."""
    shown = ", ".join(sorted(known)[:_MOST_NAMED]) + ", …" * (len(known) > _MOST_NAMED)
    there = f"there are {shown}" if known else "there is none"
    return InvalidRequestError(f"there is no worker {name!r}; {there}", field="worker_id")


class InvalidParameterError(InvalidRequestError):
    """A parameter is out of its bound. The text has its name, its value, and the bound."""

    reason = "INVALID_PARAMETER"

    def __init__(self, name: str, value: object, bound: str) -> None:
        super().__init__(
            f"{name} is {value!r}; it must be {bound}",
            field=name,
            metadata={"value": str(value)[:200], "bound": bound},
        )


class UnauthenticatedError(TwolaneError):
    """The caller presented neither a certificate nor an API key, or one that is not valid here:
    from another authority, expired, revoked, or unknown."""

    reason = "UNAUTHENTICATED"


class PermissionDeniedError(TwolaneError):
    """This caller may not do that here (an operator's call from another machine, a proxy that
    requires credentials). The same call may succeed from another place."""

    reason = "PERMISSION_DENIED"


class DuplicateRequestError(TwolaneError):
    """A request with the same `request_id` is running."""

    reason = "DUPLICATE_REQUEST"


class PreconditionError(TwolaneError):
    """The object has changed since the caller last read it: the worker was restarted, or the ticket
    of its drain was taken. Read its status again."""

    reason = "NOT_AS_EXPECTED"


class UnknownModelError(TwolaneError):
    """No worker of this cluster serves the requested model."""

    reason = "UNKNOWN_MODEL"


class UnknownSubmissionError(TwolaneError):
    """An answer cannot be resumed: no worker has its rows any more, or they belong to another
    caller. Send the request again, with the tokens received so far."""

    reason = "UNKNOWN_SUBMISSION"


class TakenOverError(TwolaneError):
    """Another router has the request now: its client, or one with the same key, has resumed it
    there."""

    reason = "TAKEN_OVER"


class OverloadedError(TwolaneError):
    """The request was refused to protect the running ones. Retry after `retry_after_s` seconds."""

    reason = "OVERLOADED"

    def __init__(
        self, message: str, *, retry_after_s: float, metadata: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message, metadata=metadata)
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        again = f" (try again in {self.retry_after_s:g} s)" if self.retry_after_s else ""
        return f"{self.message}{again}"


class QuotaError(OverloadedError):
    """The tenant's quota is used up: `metadata["quota"]` is requests, tokens or concurrent."""

    reason = "QUOTA_EXCEEDED"


class DeadlineError(TwolaneError):
    """The request's deadline has passed; the tokens generated before it have been streamed."""

    reason = "DEADLINE_EXCEEDED"


class CancelledError(TwolaneError):
    """The request was cancelled: by `cancel()`, because its client disconnected, or by an
    operator."""

    reason = "CANCELLED"


class UnavailableError(TwolaneError):
    """The request cannot be served now (no worker, connection lost). Retrying may help. A router
    that stops names those it knows, and itself: `metadata["routers"]` is host:port,host:port."""

    reason = "UNAVAILABLE"


class UnimplementedError(TwolaneError):
    """The request uses a field that this version accepts on the wire but does not implement."""

    reason = "UNIMPLEMENTED"


class InternalError(TwolaneError):
    """A bug of twolane, or a fault confined to this request (for example NaN logits)."""

    reason = "INTERNAL"
