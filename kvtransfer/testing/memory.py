"""The shipped test double: both ends in one process, in virtual time, with seeded faults.

    fabric = MemoryFabric(seed=1, faults=Faults(corrupt=0.01), call_later=loop.call_later)
    landing = fabric.landing(receiver_epoch, pool)                 # decode worker
    outlet = fabric.outlet(sender_epoch, pool, landing.address)    # prefill worker

It acts as either kind of transport:

    receiver writes (as tcp)   read source .. complete .. [on its way] .. claim .. write
    sender writes (as shm)     read source .. [on its way] .. write .. complete

so that late bytes meet the landing's checks in the first, and the wait for the sender's drain in
the second. Delays differ from page to page: pages arrive in any order.

Pages that are still to be computed wait for a `MemoryMark`. A sender that writes has submitted its
copies by then, as a device's copy stream has: they come though the post was cancelled.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from twolane.kvtransfer import reasons
from twolane.kvtransfer.copy_plan import CopyPlan, PageIds
from twolane.kvtransfer.digests import XXH3, page_checksums
from twolane.kvtransfer.layouts.sources import Source, WholePages
from twolane.kvtransfer.page_lane import PLAIN_RECEIVER
from twolane.kvtransfer.transport import Checked, LandingEvent, Posted, Stopped, Wake
from twolane.kvtransfer.transports.common.claims import LandingTable

Pool = npt.NDArray[np.uint8]  # [n_pages, page_bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The chance of each fault for each page, 0 to 1."""

    delay_s: tuple[float, float] = (0.0, 0.001)  # uniform within; of each hop
    drop: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0


class MemoryFabric:
    """Connects outlets and landings. `happened` counts the injected faults."""

    def __init__(
        self,
        *,
        seed: int = 0,
        faults: Faults | None = None,
        sender_writes: bool = False,
        checksums: bool = True,
        call_later: Callable[..., Any],  # (delay_s, callback, *args)
    ) -> None:
        self.faults = faults or Faults()
        self.sender_writes = sender_writes
        self.checksums = checksums
        self.call_later = call_later
        self.happened: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._landings: dict[str, MemoryLanding] = {}

    def landing(self, receiver_epoch: int, pool: Pool, name: str = "") -> MemoryLanding:
        """A later landing of the same name replaces it: bytes for the old one reach the new one."""
        landing = MemoryLanding(self, receiver_epoch, pool, name or f"memory-{receiver_epoch}")
        self._landings[landing.address] = landing
        return landing

    def outlet(
        self, sender_epoch: int, pool: Pool | Source, address: str, receiver_epoch: int = 0
    ) -> MemoryOutlet:
        """`receiver_epoch` 0: that of the current landing."""
        epoch = receiver_epoch or self._landings[address].receiver_epoch
        source = WholePages(pool) if isinstance(pool, np.ndarray) else pool
        return MemoryOutlet(self, sender_epoch, source, address, epoch)

    def landing_at(self, address: str) -> MemoryLanding:
        return self._landings[address]

    def delay_s(self) -> float:
        return self._random.uniform(*self.faults.delay_s)

    def deals(self, fault: str) -> bool:
        chance: float = getattr(self.faults, fault)
        if chance and self._random.random() < chance:
            self.happened[fault] += 1
            return True
        return False

    def carry(self, page: Pool) -> list[Pool]:
        """A page after the wire: no, one or two copies, correct or corrupt."""
        copies = [] if self.deals("drop") else [page]
        if self.deals("duplicate"):
            copies.append(page.copy())
        for copy in copies:
            if self.deals("corrupt"):
                copy[self._random.randrange(copy.size)] ^= 1 << self._random.randrange(8)
        return copies


class MemoryMark:
    """A `Mark` of virtual time: the code that computes the pages passes it, once."""

    def __init__(self) -> None:
        self.is_past = False
        self._waiting: list[Callable[[], None]] = []

    def then(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the mark is passed, which may be now."""
        if self.is_past:
            callback()
        else:
            self._waiting.append(callback)

    def be_passed(self) -> None:
        assert not self.is_past
        self.is_past = True
        for callback in self._waiting:
            callback()


class MemoryOutlet:
    """See `Outlet`."""

    def __init__(
        self,
        fabric: MemoryFabric,
        sender_epoch: int,
        source: Source,
        address: str,
        receiver_epoch: int,
    ) -> None:
        self._fabric = fabric
        self._epoch = sender_epoch
        self._source = source
        self._address = address
        self._receiver_epoch = receiver_epoch
        self._landing = fabric.landing_at(address)  # whose pool a writing sender has mapped
        self.n_moved = 0
        self._posts: dict[int, _MemoryPost] = {}
        self._news: list[Posted] = []
        self._wake: Wake = _nothing
        self._stalled: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None
        self._is_dead = False
        self._held_back: list[tuple[int, int, int, int, Pool]] | None = None  # by a cut network

    def post(self, post: int, generation: int, plan: CopyPlan) -> None:
        self._posts[post] = _MemoryPost(post, generation, plan, self._fabric.sender_writes)
        if plan.after is None:
            self._begin(post)
        else:
            assert isinstance(plan.after, MemoryMark)
            plan.after.then(partial(self._run, self._begin, (post,)))

    def cancel(self, generation: int) -> None:
        for post in list(self._posts.values()):
            if post.generation == generation and not post.cancelled:
                post.cancelled = True
                if not post.is_given:
                    post.left -= post.unread
                    self._finish_if_over(post)

    def poll(self) -> list[Posted]:
        news, self._news = self._news, []
        return news

    def set_wake(self, wake: Wake) -> None:
        self._wake = wake

    def close(self) -> None:
        for post in self._posts.values():
            self._news.append(Posted(post.name, False, _NO_SUMS))
        self._posts.clear()
        self._is_dead = True

    def close_soon(self) -> bool:
        self.close()
        return True

    # -- faults that a test injects ---------------------------------------------------------

    def stall(self) -> None:
        """As SIGSTOP: nothing goes on until `resume`."""
        if self._stalled is None:
            self._stalled = []

    def resume(self) -> None:
        stalled, self._stalled = self._stalled or [], None
        for callback, args in stalled:
            callback(*args)

    def cut(self) -> None:
        """As a network that is cut: nothing goes on, and what is on its way waits for `heal`."""
        self.stall()
        if self._held_back is None:
            self._held_back = []

    def heal(self) -> None:
        """What was on its way arrives, late."""
        held_back, self._held_back = self._held_back or [], None
        for args in held_back:
            self._arrive(args)
        self.resume()

    def kill(self) -> None:
        """As SIGKILL: nothing is read or written any more. Bytes on their way may still arrive."""
        self._is_dead = True
        self._posts.clear()

    # -- inside -----------------------------------------------------------------------------

    def _later(self, callback: Callable[..., None], *args: Any) -> None:
        self._fabric.call_later(self._fabric.delay_s(), self._run, callback, args)

    def _run(self, callback: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self._is_dead:
            return
        if self._stalled is not None:
            self._stalled.append((callback, args))
        else:
            callback(*args)

    def _begin(self, name: int) -> None:
        post = self._posts.get(name)
        if post is None:
            return
        plan = post.plan
        if self._fabric.checksums:
            one_by_one = (self._source.take(plan.src[i : i + 1]) for i in range(plan.n_pages))
            post.sums = np.concatenate([page_checksums(*taken) for taken in one_by_one])
        for i in range(plan.n_pages):
            self._later(self._read, name, i)

    def _read(self, name: int, i: int) -> None:
        post = self._posts.get(name)
        if post is None or (post.cancelled and not post.is_given):
            return
        post.unread -= 1
        self.n_moved += 1
        pool, (page,) = self._source.take(post.plan.src[i : i + 1])
        copies = self._fabric.carry(pool[page].copy())
        if self._fabric.sender_writes:
            post.left += len(copies)
            for copy in copies:
                self._later(self._write, name, int(post.plan.dst[i]), copy)
        for copy in copies if not self._fabric.sender_writes else ():
            index = post.plan.first + i
            args = (self._receiver_epoch, self._epoch, post.generation, index, copy)
            self._fabric.call_later(self._fabric.delay_s(), self._arrive, args)
        post.left -= 1
        self._finish_if_over(post)

    def _arrive(self, args: tuple[int, int, int, int, Pool]) -> None:
        if self._held_back is not None:
            self._held_back.append(args)
        else:
            self._fabric.landing_at(self._address).arrive(*args)

    def _write(self, name: int, page: int, content: Pool) -> None:
        self._landing.pool[page] = content
        self.n_moved += 1
        post = self._posts[name]
        post.left -= 1
        self._finish_if_over(post)

    def _finish_if_over(self, post: _MemoryPost) -> None:
        if post.left == 0:
            del self._posts[post.name]
            ok = not post.cancelled
            self._news.append(Posted(post.name, ok, post.sums if ok else _NO_SUMS))
            self._wake()


class MemoryLanding:
    """See `Landing`."""

    def __init__(self, fabric: MemoryFabric, receiver_epoch: int, pool: Pool, name: str) -> None:
        self.sender_writes = fabric.sender_writes
        self.lane = PLAIN_RECEIVER
        self.digests: tuple[str, ...] = (XXH3,) if fabric.checksums else ()
        self.receiver_epoch = receiver_epoch
        self.pool = pool
        self.address = name
        self.table = LandingTable(checksums=fabric.checksums)
        self._fabric = fabric
        self._pages: dict[int, PageIds] = {}
        self._news: list[LandingEvent] = []
        self._wake: Wake = _nothing

    @property
    def dropped(self) -> Counter[str]:
        return Counter(self.table.dropped)

    def grant(self, sender_epoch: int, generation: int, pages: PageIds) -> None:
        self._pages[generation] = pages
        self.table.grant(sender_epoch, generation, pages)

    def check(self, generation: int, first: int, n: int) -> None:
        if self.sender_writes:
            self._fabric.call_later(self._fabric.delay_s(), self._look, generation, first, n)
        else:
            self._tell(self.table.check(generation, first, n))

    def revoke(self, generation: int) -> None:
        self._pages.pop(generation, None)
        self.table.revoke(generation)
        self._fabric.call_later(self._fabric.delay_s(), self._tell, [Stopped(generation)])

    def poll(self) -> list[LandingEvent]:
        news, self._news = self._news, []
        return news

    def set_wake(self, wake: Wake) -> None:
        self._wake = wake

    def close(self) -> None:
        self._pages.clear()
        self.table = LandingTable(checksums=self._fabric.checksums)

    def arrive(
        self, receiver_epoch: int, sender_epoch: int, generation: int, index: int, page: Pool
    ) -> None:
        """One page off the wire."""
        if receiver_epoch != self.receiver_epoch:
            self.table.dropped[reasons.EPOCH] += 1
            return
        pages = self.table.claim(sender_epoch, generation, index, 1)
        if pages is not None:
            self.pool[pages[0]] = page
            sums = page_checksums(self.pool, pages) if self._fabric.checksums else None
            self._tell(self.table.landed(generation, index, 1, sums))

    def _look(self, generation: int, first: int, n: int) -> None:
        pages = self._pages.get(generation)
        if pages is not None:
            span = pages[first : first + n]
            sums = page_checksums(self.pool, span) if self._fabric.checksums else None
            self._tell([Checked(generation, first, n, sums)])

    def _tell(self, news: list[LandingEvent] | list[Checked]) -> None:
        if news:
            self._news.extend(news)
            self._wake()


class _MemoryPost:
    def __init__(self, name: int, generation: int, plan: CopyPlan, sender_writes: bool) -> None:
        self.name = name
        self.generation = generation
        self.plan = plan
        self.is_given = sender_writes and plan.after is not None  # its copies cannot be withdrawn
        self.sums: npt.NDArray[np.uint64] = _NO_SUMS
        self.left = plan.n_pages  # reads not begun, and writes under way
        self.unread = plan.n_pages
        self.cancelled = False


_NO_SUMS = np.empty(0, dtype=np.uint64)


def _nothing() -> None:
    pass
