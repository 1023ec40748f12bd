"""A queue in which tenants take turns, weighted by the tokens of their requests.

This is start-time fair queueing. Each waiting tenant has a start: the virtual time at which its
first request is due. The tenant with the least start is next; when its request leaves, its start
advances by the request's cost divided by the tenant's weight. The virtual time is the start of the
last request that left, and no tenant starts earlier, so none saves up turns while idle:

    red    |—— 500 ——|—— 500 ——|—— 500 ——|      10,000 wait
    blue             |— 300 —|                   arrives late, and starts at the virtual time:
                     ^ virtual time              it is next, or after one of red's

A tenant's own requests leave in order of arrival, but those that were deferred come after those
that were not, and take one of eight turns of that tenant at least:

    in time |1|2|3|4|5|6|7|8|9|        deferred |a|b|        leave: 1 2 3 4 5 6 7 a 8 9 b

`backlog.py` chooses whom to evict when the queue is full.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from twolane.router.lazy_heap import LazyHeap

ThingT = TypeVar("ThingT", bound=Hashable)
_FEW = 64  # so few remembered starts need no clean-up
IN_TIME_EACH = 7  # requests of a tenant that leave before a deferred one does


class _Turn(Generic[ThingT]):
    """A tenant with requests in the queue."""

    __slots__ = ("deferred", "in_time", "n_gone", "n_passed", "start", "tenant", "tokens")

    def __init__(self, tenant: str, start: float) -> None:
        self.tenant = tenant
        self.start = start
        self.in_time: LazyHeap[ThingT] = LazyHeap()  # by arrival
        self.deferred: LazyHeap[ThingT] = LazyHeap()  # likewise
        self.n_gone = 0  # in time, which have left
        self.n_passed = 0  # of those, since a deferred one left
        self.tokens = 0.0

    def __len__(self) -> int:
        return len(self.in_time) + len(self.deferred)

    def first(self) -> ThingT | None:
        is_due = self.n_passed >= IN_TIME_EACH  # guard: nothing starves
        lines = (self.deferred, self.in_time) if is_due else (self.in_time, self.deferred)
        first = lines[0].first()
        return lines[1].first() if first is None else first

    def arrival_of(self, thing: ThingT) -> int:
        arrival = self.in_time.rank_of(thing)
        return int(self.deferred.rank_of(thing) if arrival is None else arrival)


class FairLine(Generic[ThingT]):
    """Each operation takes O(log n) of all waiting requests. All state is in this object."""

    def __init__(self, weight_of: Callable[[str], float]) -> None:
        self._weight_of = weight_of
        self._turns: dict[str, _Turn[ThingT]] = {}
        self._order: LazyHeap[_Turn[ThingT]] = LazyHeap()
        self._entries: dict[ThingT, tuple[_Turn[ThingT], float]] = {}  # with its cost
        self._gone_before: dict[ThingT, int] = {}  # `n_gone` when it was deferred
        # Starts of idle tenants that are beyond the virtual time.
        self._ahead: dict[str, float] = {}
        self._virtual = 0.0
        self._tokens = 0.0
        # Waiting tenants grouped by the power of two of their waiting tokens divided by weight:
        # sums of tokens and weight of each group.
        self._groups: dict[int, list[float]] = {}
        self._group_of: dict[str, tuple[int, float, float]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ThingT]:
        """All waiting requests, in no particular order."""
        return iter(self._entries)

    def put(self, thing: ThingT, tenant: str, arrival: int, cost: float) -> None:
        """Add `thing`, which must not be present."""
        turn = self._turns.get(tenant)
        if turn is None:
            turn = self._turns[tenant] = _Turn(tenant, self._start_of(tenant))
            self._ahead.pop(tenant, None)
        turn.in_time.put(thing, arrival)
        self._entries[thing] = turn, cost
        self._count(turn, cost)
        if turn.first() is thing:
            self._rank(turn)

    def defer(self, thing: ThingT, *, is_deferred: bool) -> bool:
        """Whether those of its tenant that are not deferred go first: some have since `thing` was
        deferred, and others wait to do so. `thing` must be present. May be called again."""
        turn, _ = self._entries[thing]
        source, target = turn.in_time, turn.deferred
        if not is_deferred:
            source, target = target, source
        arrival = source.rank_of(thing)
        if arrival is None:
            gone_before = self._gone_before.get(thing, turn.n_gone)
            return bool(turn.in_time) and turn.n_gone > gone_before  # guard: others have gone
        source.discard(thing)
        target.put(thing, arrival)
        if is_deferred:
            self._gone_before[thing] = turn.n_gone
        else:
            del self._gone_before[thing]
        self._rank(turn)
        return False

    def deferred(self) -> Iterator[ThingT]:
        """All that are, in no particular order."""
        for turn in self._turns.values():
            yield from turn.deferred

    def discard(self, thing: ThingT) -> None:
        """Remove `thing`, if present."""
        turn, cost = self._entries.pop(thing, (None, 0.0))
        if turn is None:
            return
        turn.in_time.discard(thing)
        turn.deferred.discard(thing)
        self._gone_before.pop(thing, None)
        self._count(turn, -cost)
        if turn:
            self._rank(turn)
            return
        self._order.discard(turn)
        del self._turns[turn.tenant]
        self._remember(turn.tenant, turn.start)

    def pay(self, thing: ThingT) -> None:
        """It is the tenant's turn: charge the cost of `thing`, which moves the tenant's start.
        `thing` must be present, and is not removed."""
        turn, cost = self._entries[thing]
        self._virtual = max(self._virtual, turn.start)
        turn.start += cost / self._weight_of(turn.tenant)
        is_in_time = turn.in_time.rank_of(thing) is not None
        turn.n_gone += is_in_time
        turn.n_passed = turn.n_passed + 1 if is_in_time else 0
        self._rank(turn)

    def settle(self, tenant: str, tokens: float) -> None:
        """Charge a tenant `tokens` more for requests that have left; negative if they cost less."""
        delta = tokens / self._weight_of(tenant)
        turn = self._turns.get(tenant)
        if turn is None:
            self._remember(tenant, self._start_of(tenant) + delta)
        else:
            turn.start = max(self._virtual, turn.start + delta)
            self._rank(turn)

    def first(self) -> ThingT | None:
        """The next request; None if none waits. It is not removed."""
        turn = self._order.first()
        return None if turn is None else turn.first()

    def n_ahead(self, tenant: str) -> float:
        """The estimated number of requests that leave before a new one of this tenant: its own
        waiting ones, and those of other tenants whose turns come first. It assumes that all
        requests have the same size. At least one if any waits, because the first one may be waiting
        for room. Its own deferred ones count, as it may be deferred, too."""
        own, n_own = self._turns.get(tenant), 0
        if not self._entries:
            return 0.0
        if own is not None:
            n_own = len(own)  # guard: deferred ones wait
            if len(self._turns) == 1:
                return float(n_own)
        group, tokens, weight = self._group_of.get(tenant, (None, 0.0, 0.0))
        due = self._start_of(tenant) - self._virtual + tokens / self._weight_of(tenant)
        others = 0.0
        for each, (group_tokens, group_weight) in self._groups.items():
            if each == group:
                group_tokens, group_weight = group_tokens - tokens, group_weight - weight
            others += min(group_tokens, due * group_weight)
        return max(1.0, n_own + others * len(self._entries) / self._tokens)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every waiting tenant has its turn, and the sums are right."""
        turns = {turn.tenant for turn, _ in self._entries.values()}
        assert turns == set(self._turns) == set(self._group_of)
        assert set(self._order) == set(self._turns.values())
        for thing, (turn, _) in self._entries.items():
            is_in = [line.rank_of(thing) is not None for line in (turn.in_time, turn.deferred)]
            assert sum(is_in) == 1, "it is in one of the two lines of its tenant"
            assert is_in[1] is (thing in self._gone_before)
        assert sum(map(len, self._turns.values())) == len(self._entries)
        for turn in self._turns.values():
            first = turn.first()
            assert first is not None
            assert self._order.rank_of(turn) == (turn.start, turn.arrival_of(first))
        waits = sum(cost for _, cost in self._entries.values())
        in_groups = sum(tokens for tokens, _ in self._groups.values())
        for total in (self._tokens, in_groups, sum(turn.tokens for turn in self._turns.values())):
            assert abs(total - waits) < 1e-3 * max(1.0, waits)
        assert all(turn.start >= self._virtual for turn in self._turns.values())

    def _start_of(self, tenant: str) -> float:
        turn = self._turns.get(tenant)
        if turn is not None:
            return turn.start
        return max(self._virtual, self._ahead.get(tenant, 0.0))

    def _rank(self, turn: _Turn[ThingT]) -> None:
        first = turn.first()
        rank = turn.start, turn.arrival_of(first) if first is not None else 0
        if self._order.rank_of(turn) != rank:
            self._order.put(turn, rank)

    def _remember(self, tenant: str, start: float) -> None:
        if start > self._virtual:
            self._ahead[tenant] = start
        else:
            self._ahead.pop(tenant, None)
        if len(self._ahead) > 2 * len(self._turns) + _FEW:
            self._ahead = {t: at for t, at in self._ahead.items() if at > self._virtual}

    def _count(self, turn: _Turn[ThingT], tokens: float) -> None:
        """Add `tokens` to the waiting tokens of a tenant and its group."""
        self._tokens += tokens
        turn.tokens += tokens
        group, before, weight = self._group_of.pop(turn.tenant, (0, 0.0, 0.0))
        if weight:
            sums = self._groups[group]
            sums[0] -= before
            sums[1] -= weight
            if not sums[1] > 1e-9:
                del self._groups[group]
        if turn:
            weight = self._weight_of(turn.tenant)
            group = int(turn.tokens / weight).bit_length()
            sums = self._groups.setdefault(group, [0.0, 0.0])
            sums[0] += turn.tokens
            sums[1] += weight
            self._group_of[turn.tenant] = group, turn.tokens, weight
