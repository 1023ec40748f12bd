"""What is in the way of a draining worker's ticket, and what the ticket promises."""

from __future__ import annotations

import asyncio

from tests.worker.conftest import Play, WorkerCluster
from twolane.params import SamplingParams
from twolane.v1 import drain_pb2, worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.drain import MAX_NAMES
from twolane.worker.worker import Worker

A = AttemptId("r", 1)
PROMPT = list(range(40))
PARAMS = SamplingParams(max_tokens=50, seed=3)


def start(
    town: WorkerCluster, prefill: Worker, decode: Worker, attempt: AttemptId = A, name: str = "mine"
) -> None:
    town.router.assign(
        attempt, PROMPT, prefill=prefill, decode=decode, params=PARAMS, request_id=name
    )


def report(worker: Worker) -> drain_pb2.DrainReport:
    load = worker.load()
    assert load.HasField("drain")
    return load.drain


def told(town: WorkerCluster, name: str = "w") -> worker_pb2.LoadReport:
    return town.router.loads.get(name, worker_pb2.LoadReport())


async def ticket(town: WorkerCluster, worker: Worker) -> None:
    name = worker.context.worker_id
    await town.router.wait_for(lambda: told(town, name).draining, 0.1)
    town.router.confirm(worker)
    await town.router.wait_for(lambda: told(town, name).drain.has_ticket, 0.1)


def blockers(worker: Worker) -> dict[str, int]:
    return {blocker.kind: blocker.count for blocker in report(worker).blockers}


def test_what_is_in_the_way_of_the_ticket_is_named(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p"), town.add("d", "d")
        start(town, p, d)
        for worker in (p, d):
            town.router.drain(worker)
        await town.router.wait_for(lambda: len(town.router.tokens[A]) >= 5)
        (rows,) = [b for b in report(d).blockers if b.kind == "rows"]
        assert (rows.count, list(rows.names)) == (1, ["mine"])
        assert not report(d).has_ticket
        assert 0.0 < report(d).eta_s < 50.0
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(A))
        await asyncio.sleep(1.0)  # all is sent, and nobody has confirmed it
        for worker in (p, d):
            assert blockers(worker) == {"unheard": 1, "routers": 1}
            town.router.confirm(worker)
        await town.router.wait_for(
            lambda: all(told(town, name).drain.has_ticket for name in ("p", "d")), 0.1
        )

    play(scene)


def test_transfers_are_in_the_way_on_both_sides(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p"), town.add("d", "d")
        start(town, p, d)
        seen: dict[str, set[str]] = {"p": set(), "d": set()}
        for worker in (p, d):
            await asyncio.sleep(0.0006)  # the row arrives first
            town.router.drain(worker)
        while "JOINED" not in town.router.kinds(A):
            for name, worker in (("p", p), ("d", d)):
                if worker.load().HasField("drain"):
                    seen[name] |= {*blockers(worker)}
            await asyncio.sleep(0.0005)
        assert {"rows", "outgoing"} <= seen["p"]
        assert {"rows", "incoming"} <= seen["d"]

    play(scene)


def test_last_words_that_nobody_can_ask_for_any_more_are_not_in_the_way(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        start(town, worker, worker)
        await town.router.wait_for(lambda: len(town.router.tokens[A]) >= 3)
        town.router.drain(worker)
        await asyncio.sleep(0.01)
        town.router.cut(worker)  # and nobody comes back
        await worker.wait_drained()
        assert blockers(worker) == {"unheard": 1}
        await asyncio.sleep(3.5)  # the grace
        assert report(worker).has_ticket

    play(scene)


def test_a_ticket_holds_until_an_undo_and_the_next_drain_has_another(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        town.router.drain(worker)
        await town.router.wait_for(lambda: told(town).draining, 0.1)
        assert blockers(worker) == {"routers": 1}
        await ticket(town, worker)
        assert report(worker).number == 1
        start(town, worker, worker)
        await town.router.wait_for(lambda: "REFUSED" in town.router.kinds(A))
        await asyncio.sleep(1.0)
        assert report(worker).has_ticket
        town.router.drain(worker, enabled=False)
        await town.router.wait_for(lambda: not told(town).draining, 0.1)
        town.router.drain(worker, take_ticket=1)  # the old one is void
        await asyncio.sleep(0.1)
        assert worker.dropped()["stale_ticket"] == 1
        again = AttemptId("again", 1)
        start(town, worker, worker, again)
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(again))
        town.router.drain(worker)
        town.router.drain(worker)  # a repeat is no other drain
        await town.router.wait_for(lambda: told(town).draining)
        assert report(worker).number == 2
        assert blockers(worker) == {"unheard": 2, "routers": 1}  # one was refused, and one ended

    play(scene)


def test_a_ticket_that_was_taken_makes_the_drain_final(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        town.router.drain(worker)
        await ticket(town, worker)
        town.router.drain(worker, take_ticket=1)
        await town.router.wait_for(lambda: told(town).drain.is_taken, 0.1)
        town.router.drain(worker, enabled=False)
        await asyncio.sleep(0.1)
        assert worker.dropped()["ticket_taken"] == 1
        start(town, worker, worker)
        await town.router.wait_for(lambda: "REFUSED" in town.router.kinds(A))
        assert report(worker).is_taken

    play(scene)


def test_the_ticket_of_an_earlier_drain_does_not_take_that_of_the_next(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        town.router.drain(worker)
        await ticket(town, worker)
        town.router.drain(worker, enabled=False)
        await town.router.wait_for(lambda: not told(town).draining, 0.1)
        town.router.drain(worker)
        await ticket(town, worker)
        assert report(worker).number == 2
        town.router.drain(worker, take_ticket=1)
        await asyncio.sleep(0.1)
        assert worker.dropped()["stale_ticket"] == 1
        assert not report(worker).is_taken

    play(scene)


def test_a_command_that_knows_of_fewer_drains_than_have_begun_changes_nothing(play: Play) -> None:
    """A router that was away says it again, and meanwhile another one has drained the worker."""

    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        town.router.drain(worker, begun=0)
        await ticket(town, worker)
        town.router.drain(worker, enabled=False, begun=0)
        await asyncio.sleep(0.1)
        assert worker.dropped()["stale_drain"] == 1
        assert report(worker).has_ticket
        town.router.drain(worker, enabled=False, begun=1)
        await town.router.wait_for(lambda: not told(town).draining, 0.1)
        assert worker.dropped()["stale_drain"] == 1

    play(scene)


def test_a_ticket_is_not_taken_before_it_is_given(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        start(town, worker, worker)
        await town.router.wait_for(lambda: len(town.router.tokens[A]) >= 3)
        town.router.drain(worker)
        town.router.drain(worker, take_ticket=1)
        await asyncio.sleep(0.01)
        assert worker.dropped()["stale_ticket"] == 1
        assert not report(worker).is_taken

    play(scene)


def test_of_many_requests_some_are_named(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        for n in range(MAX_NAMES + 3):
            start(town, worker, worker, AttemptId(f"s{n}", 1), f"mine-{n}")
        town.router.drain(worker)
        await town.router.wait_for(lambda: told(town).draining)
        (rows,) = [b for b in report(worker).blockers if b.kind == "rows"]
        assert rows.count == MAX_NAMES + 3
        assert rows.names == [f"mine-{n}" for n in range(MAX_NAMES)]

    play(scene)


def test_a_process_that_stops_by_itself_has_no_ticket(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        worker.drain()
        await town.router.wait_for(lambda: told(town).draining)
        assert not worker.load().HasField("drain")

    play(scene)


def test_a_router_that_confirms_nothing_is_waited_for_no_longer_than_the_grace(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        town.router.drain(worker)
        await asyncio.sleep(2.9)
        assert blockers(worker) == {"routers": 1}
        await asyncio.sleep(0.5)
        assert report(worker).has_ticket

    play(scene)


def test_a_cancelled_row_is_not_in_the_way(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        start(town, worker, worker)
        await town.router.wait_for(lambda: len(town.router.tokens[A]) >= 3)
        town.router.drain(worker)
        await town.router.wait_for(lambda: told(town).draining, 0.1)
        town.router.confirm(worker)
        town.router.cancel(A, worker)
        await town.router.wait_for(lambda: told(town).drain.has_ticket, 0.5)

    play(scene)
