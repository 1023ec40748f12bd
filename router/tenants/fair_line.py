"""One waiting line in which tenants take turns by the tokens that their requests cost.

Start-time fair queueing. Each tenant that waits has a start: the virtual time at which its first
request is due. The least start goes first; a request that goes moves its tenant's start on by its
cost over the tenant's weight. The virtual time is the start of the last one that went, and no
tenant starts before it, so that nobody saves up turns by not asking:

    red    |—— 500 ——|—— 500 ——|—— 500 ——|      10,000 wait
    blue             |— 300 —|                   comes late, and starts at the virtual time:
                     ^ virtual time              it goes next, or after one of red's

Within a tenant the order is that of arrival. Who gives way when the queue is full: `backlog.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from twolane.router.lazy_heap import LazyHeap

ThingT = TypeVar("ThingT", bound=Hashable)
_FEW = 64  # debts that are not worth looking through


class _Turn(Generic[ThingT]):
    """A tenant that has something in the line."""

    __slots__ = ("start", "tenant", "things", "tokens")

    def __init__(self, tenant: str, start: float) -> None:
        self.tenant = tenant
        self.start = start
        self.things: LazyHeap[ThingT] = LazyHeap()  # by arrival
        self.tokens = 0.0


class FairLine(Generic[ThingT]):
    """Each operation takes O(log n) of all that wait. What a tenant had is forgotten when the line
    is given up."""

    def __init__(self, weight_of: Callable[[str], float]) -> None:
        self._weight_of = weight_of
        self._turns: dict[str, _Turn[ThingT]] = {}
        self._order: LazyHeap[_Turn[ThingT]] = LazyHeap()
        self._entries: dict[ThingT, tuple[_Turn[ThingT], float]] = {}  # and what it costs
        self._ahead: dict[str, float] = {}  # starts of tenants that do not wait, where still ahead
        self._virtual = 0.0
        self._tokens = 0.0
        # tenants by the power of two of what they wait for over their weight: tokens, weight, each
        self._groups: dict[int, list[float]] = {}
        self._group_of: dict[str, tuple[int, float, float]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ThingT]:
        """In no order."""
        return iter(self._entries)

    def put(self, thing: ThingT, tenant: str, arrival: int, cost: float) -> None:
        """It must not be here."""
        turn = self._turns.get(tenant)
        if turn is None:
            turn = self._turns[tenant] = _Turn(tenant, self._start_of(tenant))
            self._ahead.pop(tenant, None)
        turn.things.put(thing, arrival)
        self._entries[thing] = turn, cost
        self._count(turn, cost)
        if turn.things.first() is thing:
            self._rank(turn)

    def discard(self, thing: ThingT) -> None:
        """It waits no more. It may be absent."""
        turn, cost = self._entries.pop(thing, (None, 0.0))
        if turn is None:
            return
        turn.things.discard(thing)
        self._count(turn, -cost)
        if turn.things:
            self._rank(turn)
            return
        self._order.discard(turn)
        del self._turns[turn.tenant]
        self._remember(turn.tenant, turn.start)

    def pay(self, thing: ThingT) -> None:
        """Its turn has come: its tenant's next one is later. It must be here, and stays."""
        turn, cost = self._entries[thing]
        self._virtual = max(self._virtual, turn.start)
        turn.start += cost / self._weight_of(turn.tenant)
        self._rank(turn)

    def settle(self, tenant: str, tokens: float) -> None:
        """What went has cost so many tokens more than was paid; below 0: less."""
        delta = tokens / self._weight_of(tenant)
        turn = self._turns.get(tenant)
        if turn is None:
            self._remember(tenant, self._start_of(tenant) + delta)
        else:
            turn.start = max(self._virtual, turn.start + delta)
            self._rank(turn)

    def first(self) -> ThingT | None:
        """Whose turn it is. It stays."""
        turn = self._order.first()
        return None if turn is None else turn.things.first()

    def n_ahead(self, tenant: str) -> float:
        """How many would go before a new request of this tenant: its own, and what the others get
        meanwhile, as far as they wait for so much. It takes requests to be of one size. At least
        one, if any waits: a new one comes behind one that waits for room."""
        own, n_own = self._turns.get(tenant), 0
        if not self._entries:
            return 0.0
        if own is not None:
            n_own = len(own.things)
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
        """Raises AssertionError unless every tenant that waits has its turn, and the sums hold."""
        turns = {turn.tenant for turn, _ in self._entries.values()}
        assert turns == set(self._turns) == set(self._group_of)
        assert set(self._order) == set(self._turns.values())
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
        first = turn.things.first()
        rank = turn.start, turn.things.rank_of(first) if first is not None else 0
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
        """So many tokens more wait."""
        self._tokens += tokens
        turn.tokens += tokens
        group, before, weight = self._group_of.pop(turn.tenant, (0, 0.0, 0.0))
        if weight:
            sums = self._groups[group]
            sums[0] -= before
            sums[1] -= weight
            if not sums[1] > 1e-9:
                del self._groups[group]
        if turn.things:
            weight = self._weight_of(turn.tenant)
            group = int(turn.tokens / weight).bit_length()
            sums = self._groups.setdefault(group, [0.0, 0.0])
            sums[0] += turn.tokens
            sums[1] += weight
            self._group_of[turn.tenant] = group, turn.tokens, weight
