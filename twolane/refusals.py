"""Why a worker does not take an ASSIGN: the stable words of RowEvent.reason.

invalid          a field is out of its bound, or unset: the router's bug, or a version skew
no_role          this worker does not have that role
too_large        more context, or more pages, than this worker can ever hold
epoch            another incarnation of this worker was meant
tombstone        the attempt was cancelled before
duplicate        the attempt is another router's
cancelled        its transfer was given up before it was assigned; the prefill worker tells why
request_in_use   another request runs under that label
draining         takes no new rows
queue_full       too many rows wait here
"""

from __future__ import annotations

INVALID = "invalid"
NO_ROLE = "no_role"
TOO_LARGE = "too_large"
EPOCH = "epoch"
TOMBSTONE = "tombstone"
DUPLICATE = "duplicate"
CANCELLED = "cancelled"
REQUEST_IN_USE = "request_in_use"
DRAINING = "draining"
QUEUE_FULL = "queue_full"

# They say nothing of the request: it goes elsewhere, or comes again.
NOT_NOW = frozenset({DRAINING, QUEUE_FULL})
