"""Where one connection of a stream landing writes its bytes: directly into pages of host memory, or
through pinned slots into pages of a device.

    host     claim --- bytes are read into the pool -------------------> landed
    device   claim --- bytes are read into a slot --> copy to device --> landed, once it has ended
    shm      claim --- slot of the sender ----------> copy to device --> landed; the slot is freed

A revoked grant is `Stopped` when no copy into its pages is under way: see `DeviceDestination`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from twolane.kvtransfer.copy_plan import PageIds, runs
from twolane.kvtransfer.digests import HOST_DIGESTS, Pool, page_sums
from twolane.kvtransfer.transport import Checked
from twolane.kvtransfer.transports.common.claims import LandingTable
from twolane.kvtransfer.transports.common.frames import FrameError


@dataclass(frozen=True, slots=True)
class Claim:
    """Pages `ids` of a grant, from its page `first` on, that a frame's bytes may be written to."""

    generation: int
    first: int
    ids: PageIds


class Sink(Protocol):
    """The end of one connection. Used by the landing's thread; one claim at a time."""

    def meet(self, digest: str) -> None:
        """The connection's hello. Raises FrameError for a digest that the landing has not."""
        ...

    def begin(self, claim: Claim) -> None:
        """The next bytes are those of this claim."""
        ...

    def views(self) -> list[memoryview] | None:
        """Memory for the next bytes. Empty: there is no room yet. None: the claim is complete."""
        ...

    def filled(self) -> list[Checked]:
        """The views are full. Returns the checks that this answers."""
        ...

    def stop(self) -> None:
        """The claim is void: drop what came of it."""
        ...

    def leave(self) -> None:
        """The connection is over."""
        ...


class Destination(Protocol):
    """The pool that all sinks of a landing write to. Used by the landing's thread only."""

    page_bytes: int
    digests: tuple[str, ...]
    table: LandingTable

    def open_sink(self, free_slot: Callable[[int], None]) -> Sink:
        """The sink of a new connection; `free_slot(i)` tells its sender that slot i is free."""
        ...

    @property
    def is_busy(self) -> bool:
        """Copies are under way: call `look` soon."""
        ...

    def look(self) -> list[Checked]:
        """Poll the copies. Returns the checks that those which ended answer."""
        ...

    def is_writing(self, generation: int) -> bool: ...

    def close(self) -> None:
        """Nothing writes to the pool when this returns."""
        ...


class HostDestination:
    """A pool in host memory: bytes are read into it directly."""

    def __init__(self, pool: Pool, table: LandingTable, *, checksums: bool) -> None:
        assert pool.flags.c_contiguous and pool.ndim == 2  # noqa: PT018 -- one fact
        self.pool = pool
        self.page_bytes = pool.shape[1]
        self.table = table
        self.digests: tuple[str, ...] = HOST_DIGESTS if checksums else ()

    def open_sink(self, free_slot: Callable[[int], None]) -> Sink:
        return _HostSink(self)

    @property
    def is_busy(self) -> bool:
        return False

    def look(self) -> list[Checked]:
        return []

    def is_writing(self, generation: int) -> bool:
        return False  # the thread writes only between two orders

    def close(self) -> None:
        """Owns nothing."""


class _HostSink:
    """See `Sink`."""

    def __init__(self, destination: HostDestination) -> None:
        self._destination = destination
        self._digest = ""
        self._claim: Claim | None = None
        self._is_filled = False

    def meet(self, digest: str) -> None:
        check_digest(digest, self._destination.digests)
        self._digest = digest

    def begin(self, claim: Claim) -> None:
        self._claim = claim
        self._is_filled = False

    def views(self) -> list[memoryview] | None:
        assert self._claim is not None
        if self._is_filled:
            return None
        ids, size = self._claim.ids, self._destination.page_bytes
        flat, starts = self._destination.pool.data.cast("B"), ids.tolist()
        return [flat[starts[a] * size : (starts[a] + b - a) * size] for a, b in runs(ids)]

    def filled(self) -> list[Checked]:
        claim = self._claim
        assert claim is not None
        self._is_filled = True
        pool = self._destination.pool
        sums = page_sums(self._digest)(pool, claim.ids) if self._digest else None
        return self._destination.table.landed(
            claim.generation, claim.first, int(claim.ids.size), sums
        )

    def stop(self) -> None:
        self._claim = None

    def leave(self) -> None:
        self._claim = None


def check_digest(digest: str, known: tuple[str, ...]) -> None:
    """Raises FrameError unless `known` has this digest; where that is empty, it must be empty."""
    if digest not in (known or ("",)):
        raise FrameError(f"digest {digest!r}; here {known}")
