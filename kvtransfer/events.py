"""Events of `Sender` and `Receiver` for the roles."""

from __future__ import annotations

from dataclasses import dataclass, field

from twolane.kvtransfer.key import Key


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The token that P sampled; DONE carries it."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()  # (token, log-probability), likeliest first


# -- of the Sender. `Released` is the last event of every key that was opened, exactly once.


@dataclass(frozen=True, slots=True)
class Committed:
    """The receiver took the row. `Released` follows."""

    key: Key
    n_pages: int  # pages that were moved (those that the receiver had already are not counted)
    n_bytes: int
    at_s: float = field(default=0.0, compare=False)  # when its COMMIT came


@dataclass(frozen=True, slots=True)
class Unplaced:
    """The receiver's queue is full ("busy"), or its bytes do not move ("stuck": its sends are
    cancelled). RESERVE is repeated, and the transfer may be retargeted.

    Comes once until it is placed.
    """

    key: Key
    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The transfer will never happen: refused there, or the receiver's lease ran out.

    `Released` follows.
    """

    key: Key
    reason: str


@dataclass(frozen=True, slots=True)
class Released:
    """Nothing of this key is pinned, no send of it is under way, and the key is forgotten."""

    key: Key


SenderEvent = Committed | Unplaced | Failed | Released


# -- of the Receiver. One of the three ends every key that was expected (unless it was cancelled);
# `Landed` does once it is committed.


@dataclass(frozen=True, slots=True)
class Landed:
    """All pages have landed and are verified. The receiver has them until `try_commit` or `cancel`.

    `Abandoned` may follow as long as it is not committed.
    """

    key: Key
    pages: tuple[int, ...]  # of the row, in order: first those of the prefix cache, then the moved
    skip_pages: int  # how many came from the prefix cache
    first: FirstToken


@dataclass(frozen=True, slots=True)
class Dead:
    """The transfer will never complete: the request needs a new attempt."""

    key: Key
    reason: str


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The sender abandoned it (cancelled, or "finish": the first token ended the request)."""

    key: Key
    reason: str


ReceiverEvent = Landed | Dead | Abandoned


@dataclass(frozen=True, slots=True)
class Verdict:
    """Answer to `judge`: `landed` goes on here, otherwise it never will."""

    key: Key
    landed: bool
