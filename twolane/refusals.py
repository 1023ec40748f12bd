"""Every reason for which a request, or a row of it, is refused.

    client ──> door ──> admission ──> queue ──> worker

    door         counted in `refused`; the client's error has this reason, in capitals
    admission    counted in `refused`; the client gets OverloadedError or DeadlineError
    worker       RowEvent REFUSED with this reason; the router tries another worker, and counts it
                 in `resumes` as refused.REASON

`refused` and `resumes` are counters in the router's status and metrics. A new reason at a door is
an error of `twolane.errors`, with its gRPC status in `twolane.rpc.errors` and its HTTP status in
`twolane.router.doors.http.errors`.
"""

from __future__ import annotations

from enum import StrEnum


class Refusal(StrEnum):
    """These values never change: they are on the wire and in metrics."""

    # At a door: the reasons of twolane.errors.
    INVALID_REQUEST = "invalid_request"  # it is invalid and can never succeed
    INVALID_PARAMETER = "invalid_parameter"  # one field is out of its bound
    UNIMPLEMENTED = "unimplemented"  # a field that is reserved for a later version
    UNAUTHENTICATED = "unauthenticated"  # no valid API key or certificate
    PERMISSION_DENIED = "permission_denied"  # not for this caller, or not at this listener
    UNKNOWN_MODEL = "unknown_model"  # no worker serves that model
    DUPLICATE_REQUEST = "duplicate_request"  # its request id is in use
    UNKNOWN_SUBMISSION = "unknown_submission"  # that answer cannot be resumed
    TAKEN_OVER = "taken_over"  # another router has that answer since a later takeover
    QUOTA_EXCEEDED = "quota_exceeded"  # a quota of its tenant; counted as one of quota_* below
    OVERLOADED = "overloaded"  # a bound of the door itself: calls, connections, unread messages
    DEADLINE_EXCEEDED = "deadline_exceeded"  # its message did not arrive in time
    UNAVAILABLE = "unavailable"  # the router is stopping, or has no worker

    # At admission (router/dispatch/admission.py). The first three are quotas of a tenant.
    QUOTA_REQUESTS = "quota_requests"  # too many requests a second
    QUOTA_TOKENS = "quota_tokens"  # too many tokens a minute
    QUOTA_CONCURRENT = "quota_concurrent"  # too many requests at once
    QUEUE_FULL = "queue_full"  # too many requests wait at the router, or rows at a worker
    QUEUE_LONG = "queue_long"  # the expected wait is too long
    EVICTED = "evicted"  # a higher priority, or a tenant with fewer requests, took its place
    DEADLINE = "deadline"  # the deadline had passed when it arrived
    DEADLINE_HOPELESS = "deadline_hopeless"  # it would pass before the answer is complete
    DEFERRED = "deferred"  # with an SLO: those that can be in time made it wait too long
    OVERTAKEN = "overtaken"  # higher priorities arrived and would make it wait too long

    # At a worker, for an ASSIGN.
    INVALID = "invalid"  # a field is unset or out of its bound: a router bug, or version skew
    NO_ROLE = "no_role"  # the worker does not have that role
    TOO_LARGE = "too_large"  # it needs a longer context, or more pages, than the worker has in all
    EPOCH = "epoch"  # it was for another incarnation of the worker
    TOMBSTONE = "tombstone"  # the attempt was cancelled before
    CANCELLED = "cancelled"  # its transfer was abandoned before; the prefill worker reports why
    REQUEST_IN_USE = "request_in_use"  # another request runs under that label
    DRAINING = "draining"  # the worker takes no new rows


# Reasons of a worker that do not depend on the request: the router tries another worker, or this
# one again later.
NOT_NOW = frozenset({Refusal.DRAINING, Refusal.QUEUE_FULL})
