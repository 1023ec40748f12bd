"""The two ends of a transport, as `Sender` and `Receiver` see them.

    Outlet    one sender's way to one receiver: reads source pages
    Landing   one receiver's arrivals of one kind, from all senders: destination pages

No call blocks. Work happens on a thread of the transport (or in virtual time). Its events wait
until `poll`; `wake` (set by `set_wake`) is called from any thread when there are some.
"""

from __future__ import annotations

from collections import Counter
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
    """A post is complete locally: its source pages are no longer read.

    `ok` False: cancelled or failed; some of its bytes may have been sent.
    """

    post: int
    ok: bool
    checksums: Checksums  # one for each page; empty when checksums are off or not ok


class Outlet(Protocol):
    """Sender's end. Completions come in any order, exactly one for each post."""

    def post(self, post: int, generation: int, plan: CopyPlan) -> None:
        """Copy the plan's source pages to the receiver. `post` is the caller's number for it."""
        ...

    def cancel(self, generation: int) -> None:
        """Complete all posts of the generation soon; those that have not begun never begin.

        Copies that wait on a device for an engine's event have begun: they are still carried out.
        Over cuda_ipc they write into the receiver's pages, which stay in quarantine until Drained.
        """
        ...

    def poll(self) -> list[Posted]: ...

    @property
    def n_moved(self) -> int:
        """Grows as posts make progress, in bytes or pieces of this transport."""
        ...

    def set_wake(self, wake: Wake) -> None: ...

    def close(self) -> None:
        """Stop; every post under way is complete (not ok) when this returns. May be repeated."""
        ...

    def close_soon(self) -> bool:
        """`close` without waiting: call again until it returns True."""
        ...


@dataclass(frozen=True, slots=True)
class Checked:
    """These pages of a grant have landed, with these checksums."""

    generation: int
    first: int  # index into the grant's pages
    n_pages: int
    checksums: Checksums | None  # None: this landing computes none


@dataclass(frozen=True, slots=True)
class Stopped:
    """This process no longer writes to the pages of the revoked grant.

    That is proof, and frees them, where the receiver is the writer; not where the sender is.
    """

    generation: int


LandingEvent = Checked | Stopped


class Landing(Protocol):
    """Receiver's end of a transport, for all senders that use it."""

    sender_writes: bool  # into our memory: then only its Drained, or its end, is proof
    lane: ReceiverLane  # what protects its connections; `plain` where pages never leave the host
    digests: tuple[str, ...]  # of its `Checked`, best first; none: chunks need no checksums

    @property
    def address(self) -> str:
        """What senders connect to (ReceiverHello.transport_address)."""
        ...

    @property
    def dropped(self) -> Counter[str]:
        """How many frames and connections were refused, by reason; a snapshot."""
        ...

    def grant(self, sender_epoch: int, generation: int, pages: PageIds) -> None:
        """From now on the sender may write these pages under this generation, each once."""
        ...

    def check(self, generation: int, first: int, n: int) -> None:
        """Answer `Checked` once pages [first, first + n) of the grant have landed."""
        ...

    def revoke(self, generation: int) -> None:
        """Nothing lands under this generation any more. Answered by `Stopped`. May be repeated."""
        ...

    def poll(self) -> list[LandingEvent]: ...

    def set_wake(self, wake: Wake) -> None: ...

    def close(self) -> None:
        """Stop; this process writes nothing when this returns. May be repeated."""
        ...
