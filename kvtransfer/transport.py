"""The two ends of a transport, as `Sender` and `Receiver` see them.

    Outlet    one sender's way to one receiver: reads source pages
    Landing   one receiver's arrivals of one kind, from all senders: destination pages

No call blocks. Work happens on a thread of the transport (or in virtual time); its news wait until
`poll`, and `wake` (given at construction or by `set_wake`) is called, from any thread, when there
are any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from twolane.kvtransfer.copy_plan import CopyPlan
from twolane.kvtransfer.page_lane import ReceiverLane

Checksums = npt.NDArray[np.uint64]
PageIds = npt.NDArray[np.int64]
Wake = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Posted:
    """A post is complete locally: its source pages are not read any more.

    `ok` False: cancelled or failed; some of its bytes may have gone out.
    """

    post: int
    ok: bool
    checksums: Checksums  # one a page of the plan; empty when checksums are off or not ok


class Outlet(Protocol):
    """Sender's end. Completions come in any order, exactly one a post."""

    def post(self, post: int, generation: int, plan: CopyPlan) -> None:
        """Copy the plan's source pages to the receiver. `post` is the caller's name for it."""
        ...

    def cancel(self, generation: int) -> None:
        """Complete all posts of the generation soon; what was not begun never begins.

        What a device was given behind an engine's mark is begun: it is carried out after this. Over
        cuda_ipc that is into the receiver's pages, which it frees when we say that all is over
        (Drained).
        """
        ...

    def poll(self) -> list[Posted]: ...

    @property
    def n_moved(self) -> int:
        """Grows as posts get on, by the pieces or bytes that this transport tells apart."""
        ...

    def set_wake(self, wake: Wake) -> None: ...

    def close(self) -> None:
        """Stop; every post under way is complete (not ok) when this returns. Twice is fine."""
        ...

    def close_soon(self) -> bool:
        """As `close`, without waiting: it begins to stop, and is asked again until this is True."""
        ...


@dataclass(frozen=True, slots=True)
class Checked:
    """The bytes of these pages of a grant are here; this is what they sum up to."""

    generation: int
    first: int  # index into the grant's pages
    n_pages: int
    checksums: Checksums | None  # None: this landing does not compute any


@dataclass(frozen=True, slots=True)
class Stopped:
    """This process will not write to the pages of the revoked grant any more.

    Proof that frees them where the receiver is the writer; worth nothing where the sender is.
    """

    generation: int


LandingEvent = Checked | Stopped


class Landing(Protocol):
    """Receiver's end of all senders that use this transport."""

    sender_writes: bool  # the sender writes into our memory: only its word, or its end, is proof
    lane: ReceiverLane  # what protects its connections; `plain` where pages never leave the host
    digests: tuple[str, ...]  # that its `Checked` may bring, best first; none: chunks need no sums

    @property
    def address(self) -> str:
        """Where senders find it (ReceiverHello.transport_address)."""
        ...

    def grant(self, sender_epoch: int, generation: int, pages: PageIds) -> None:
        """From now on the sender's bytes for this generation may land in these pages, once each."""
        ...

    def check(self, generation: int, first: int, n: int) -> None:
        """Answered by `Checked` once pages [first, first + n) of the grant have landed."""
        ...

    def revoke(self, generation: int) -> None:
        """Nothing lands under this generation any more; answered by `Stopped`. Twice is fine."""
        ...

    def poll(self) -> list[LandingEvent]: ...

    def set_wake(self, wake: Wake) -> None: ...

    def close(self) -> None:
        """Stop; nothing is written by this process when this returns. Twice is fine."""
        ...
