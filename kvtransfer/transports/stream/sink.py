"""Where one connection of a stream landing puts its bytes: pages of host memory, at once; pages of
a device by way of pinned slots.

    host     claim --- bytes land in the pool -------------------------> landed
    device   claim --- slot: bytes land ---> copy to the device -------> landed, when its fence says
    shm      claim --- slot of the sender's: copy to the device -------> landed; the slot is freed

A revoked grant is `Stopped` when no copy into its pages is under way: see `DeviceGround`.
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
    """Pages that a frame's bytes may be written to, under a generation, from `first` on."""

    generation: int
    first: int
    ids: PageIds


class Sink(Protocol):
    """One connection's; used by the landing's thread. One claim at a time."""

    def meet(self, digest: str) -> None:
        """Its hello. Raises FrameError for a digest that we do not compare."""
        ...

    def begin(self, claim: Claim) -> None:
        """The claim's bytes come next."""
        ...

    def views(self) -> list[memoryview] | None:
        """Where the next of them go. Empty: there is no room yet. None: all are here."""
        ...

    def filled(self) -> list[Checked]:
        """The last views are full."""
        ...

    def stop(self) -> None:
        """The claim is void: what came of it is dropped."""
        ...

    def leave(self) -> None:
        """The connection is over."""
        ...


class Destination(Protocol):
    """What the sinks of a landing share; used by its thread alone."""

    page_bytes: int
    digests: tuple[str, ...]
    table: LandingTable

    def open_sink(self, free_slot: Callable[[int], None]) -> Sink:
        """For a new connection; `free_slot` tells its sender that a slot may be filled again."""
        ...

    @property
    def is_busy(self) -> bool:
        """Copies are under way: `look` soon."""
        ...

    def look(self) -> list[Checked]:
        """What has landed since."""
        ...

    def is_writing(self, generation: int) -> bool: ...

    def close(self) -> None:
        """Nothing is written when this returns."""
        ...


class HostDestination:
    """A pool in host memory: bytes land in it directly."""

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
        return False  # only between two looks at the orders

    def close(self) -> None:
        """Nothing is ours."""


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
    """Raises FrameError unless it is one of these; where there are none, it must be empty."""
    if digest not in (known or ("",)):
        raise FrameError(f"digest {digest!r}; here {known}")
