"""How long every table below an object is: what a leak shows in."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Collection, Iterator
from typing import Any

_OURS, _DOUBLES = "twolane.", "twolane.deploy.virtual_cluster."
_TABLES = (dict, set, list, deque)
# Caches and counts, bounded each by itself: they may hold what is past.
_MEMORIES = frozenset(
    {
        "PrefixAffinity",  # which worker had which beginning of a prompt
        "PrefixIndex",
        "PageAllocator",  # cached pages
        "Accounts._accounts",  # by tenant, of which there are as many as keys and certificates name
        "DrainRate",
        "RouterMetrics",
        "Counter",
        "Membership._retired",  # epochs that may not come back
        "Admission._last_servable",  # by model, as are the next two
        "Admission._servable_since",
        "Forecast",
        "LogRate",  # by kind of record
        "Membership.proofs",  # kept for ten minutes
        "EndedRequests",  # the last of them, and their journals, for operators
        "EventLog",  # the last events, likewise
        "Pace",  # of the last steps and seconds
        "Membership.changed",  # until somebody asks for a worker
        "StepWatch._seen",  # kinds of steps
        "LazyHeap._heap",  # some of it may be dead, in bounds that tests of its own hold
        # doubles
        "FakeEngine",
        "MemoryFabric",
        "MemoryLink",
        "TimedStepRunner",
        "VirtualTimeLoop",
        "_JumpingSelector",
    }
)
# By worker, or by connected peer, of which there are as many as there are workers.
BY_PEER = frozenset(
    {
        "InPeers.of",
        "PeerLinks._of",
        "PostBook.peers",
        "ReceiverDriver._pidfds",
        "Roster._facts",
        "Roster._kinds",
        "Roster._others",
        "Roster._views",
        "SenderDriver._asked",
        "SenderDriver._endpoints",
        "SenderDriver._outlets",
        "Tally.changed",
    }
)


def lengths(*roots: object) -> dict[str, int]:
    """By `Class.attribute`, the number of things in all such tables that can be reached."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    todo: list[object] = list(roots)
    while todo:
        thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        kind = type(thing).__name__
        if kind in _MEMORIES:
            continue
        for name, value in _attributes(thing):
            if f"{kind}.{name}" in _MEMORIES:
                continue
            if isinstance(value, deque) and value.maxlen is not None:
                continue  # it is bounded
            if isinstance(value, _TABLES) and not isinstance(value, Counter):
                found[f"{kind}.{name}"] += len(value)
            todo += _below(value)
    return dict(found)


def _attributes(thing: object) -> Iterator[tuple[str, Any]]:
    module = type(thing).__module__
    if not module.startswith(_OURS) or module.startswith(_DOUBLES):
        return
    names = {name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())}
    for name in {*names, *getattr(thing, "__dict__", {})}:
        if hasattr(thing, name):
            yield name, getattr(thing, name)


def _below(value: Any) -> Collection[object]:
    if isinstance(value, asyncio.Future | str | bytes):
        return ()
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return list(value)
    return (value,)
