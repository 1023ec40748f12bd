"""Stable words: why a transfer ended or a message was dropped."""

from __future__ import annotations

# Refused, Abandon, Revoke, Failed, Dead
UNKNOWN = "unknown"  # no such reservation: RESERVE again
UNASSIGNED = "unassigned"  # no ASSIGN came within one lease
CANCELLED = "cancelled"
FINISH = "finish"  # the first token ended the request
RETARGETED = "retargeted"
TOO_LARGE = "too_large"
MISMATCH = "mismatch"  # RESERVE and ASSIGN disagree on the row's length, or its prefix hashes
LEASE = "lease"  # the other side was not heard of
JUDGED = "judged"
CORRUPT = "corrupt"  # a checksum differs
INCOMPLETE = "incomplete"  # DONE came, the bytes did not
ABANDONED = "abandoned"
REGRANTS = "regrants"  # spoilt too often
BUSY = "busy"  # the receiver's queue is full
HELD = "held"  # the receiver grants nothing, and others wait for the pages that it is held in
STUCK = "stuck"  # sends were under way, and nothing of them moved in time

# Dropped messages, by reason; EPOCH also of transfers to a receiver that is another by now
EPOCH = "epoch"
GENERATION = "generation"
DUPLICATE = "duplicate"
MALFORMED = "malformed"
UNPROVEN = "unproven"  # a connection or datagram did not have the key that it needs
STATE = "state"
