"""What departed requests leave behind: nothing."""

import asyncio
import gc
import random
import weakref
from typing import Any

from twolane.errors import CancelledError
from twolane.params import SamplingParams
from twolane.router.config import RouterConfig
from twolane.router.dispatch.dispatch import Dispatcher
from twolane.router.lazy_heap import FEW, LazyHeap
from twolane.router.requests.request import Job, Request
from twolane.router.router import Router
from twolane.router.testing.client import ask, message, play
from twolane.router.testing.cluster import ScriptedCluster


def job(name: str, priority: int = 0) -> Job:
    params = SamplingParams(max_tokens=8, seed=1)
    return Job(
        request_id=name, model="m", token_ids=(1,) * 99, params=params, arrived=0, priority=priority
    )


def test_clients_that_leave_behind_a_waiting_head_leave_no_entry_behind() -> None:
    dispatcher = Dispatcher(RouterConfig())
    head = dispatcher.submit(job("head", 5), None, 0.0)
    for n in range(2_000):
        gone = dispatcher.submit(job(f"gone{n}"), None, 0.0)
        dispatcher.end(gone.job.submission_id, CancelledError("the client left"), 0.0)
        dispatcher.take_news()
        assert all(size <= 2 * 2 + FEW for size in _sizes(dispatcher).values())
    assert len(dispatcher.board.queue) == 1
    gc.collect()
    left = [thing for thing in gc.get_objects() if type(thing) is Request]
    assert sum(request.job.request_id.startswith("gone") for request in left) <= 2 * FEW + 9
    dispatcher.board.check_integrity()
    dispatcher.end(head.job.submission_id, CancelledError("the client left"), 0.0)
    assert all(size <= FEW for size in _sizes(dispatcher).values())


def _sizes(dispatcher: Dispatcher) -> dict[str, int]:
    """Of everything that grows with requests."""
    queue = dispatcher.board.queue
    heaps: list[LazyHeap[Any]] = []
    for line in queue._lines.values():
        heaps.append(line.resumed)
        for fair in line.new.values():
            heaps.append(fair._order)
            for turn in fair._turns.values():
                heaps += [turn.in_time, turn.deferred]
    for of in queue._backlog._priorities.values():
        heaps += [of.longest, *of.youngest.values()]
    return {
        "requests": len(dispatcher.board.requests),
        **{f"heap {n}": len(heap._heap) for n, heap in enumerate(heaps)},
    }


def test_client_that_reads_slowly_keeps_no_prompt_once_its_answer_is_over() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        (answer := router.generate(message([5] * 50, request_id="slow", max_tokens=4)))
        first = await anext(answer)
        assert first.prompt_tokens == 50
        request = router._dispatcher.board.requests[first.submission_id]
        await asyncio.sleep(1.0)
        assert request.is_over
        assert not request.job.token_ids
        responses = [response async for response in answer]
        assert sum(len(response.tokens) for response in responses) == 4
        assert responses[-1].ledger.prompt_tokens == 50

    play(script)


def test_news_of_workers_are_not_kept_while_nobody_waits() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        for n in range(20):
            await ask(router, message([n, 2], max_tokens=2))
        roster = router._dispatcher.board.roster
        assert not roster._news

    play(script)


class Thing:
    """Weakly referable."""


def test_heap_is_sorted_whatever_was_moved_and_taken_back() -> None:
    rng = random.Random(7)
    heap: LazyHeap[int] = LazyHeap()
    ranks: dict[int, int] = {}
    for _ in range(5_000):
        thing = rng.randrange(300)
        if rng.random() < 0.5:
            heap.put(thing, ranks.setdefault(thing, 0))
            ranks[thing] = rng.randrange(100)
            heap.put(thing, ranks[thing])
        else:
            heap.discard(thing)
            ranks.pop(thing, None)
        assert len(heap) == len(ranks) == len(list(heap))
        first = heap.first()
        assert (first is None) == (not ranks)
        assert first is None or ranks[first] == min(ranks.values())
    up_to_50 = sorted(rank for rank in ranks.values() if rank <= 50)
    assert [ranks[thing] for thing in heap.take_up_to(50)] == up_to_50
    assert sorted(heap) == sorted(thing for thing, rank in ranks.items() if rank > 50)


def test_heap_lets_go_of_what_was_taken_back() -> None:
    heap: LazyHeap[Thing] = LazyHeap()
    last = Thing()
    heap.put(last, 0)
    gone = []
    for _ in range(10 * FEW):
        thing = Thing()
        gone.append(weakref.ref(thing))
        heap.put(thing, 1)
        heap.discard(thing)
    del thing
    assert sum(ref() is not None for ref in gone) <= FEW + 2
