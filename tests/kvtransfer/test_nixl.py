"""The nixl transport's ends alone, over sockets: what is written where, and when that is over."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest

from tests.kvtransfer.device_pair import (
    D_EPOCH,
    N_PAGES,
    P_EPOCH,
    SIZE,
    DevicePair,
    Ear,
    device_pair,
    wait_until,
)
from tests.kvtransfer.nixl_marks import needs_nixl
from tests.kvtransfer.receiving import receiving
from tests.kvtransfer.test_streams import connect, is_hung_up
from twolane.kvtransfer.copy_plan import CopyPlan
from twolane.kvtransfer.device import region_of
from twolane.kvtransfer.transport import Stopped
from twolane.kvtransfer.transports.nixl import agent as nixl_agent
from twolane.kvtransfer.transports.nixl import outlet as nixl_outlet
from twolane.kvtransfer.transports.nixl.agent import NixlAgent, NixlWrite, WriteState
from twolane.kvtransfer.transports.nixl.channel import NixlChannel
from twolane.kvtransfer.transports.registry import OutletOpener, TransportConfig, open_landings
from twolane.v1 import nixl_pb2, transfer_pb2

pytestmark = needs_nixl
ALL = list(range(N_PAGES))
DRAIN_S = GIVE_UP_S = 0.3


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[DevicePair]:
    monkeypatch.setattr(nixl_outlet, "GIVE_UP_S", GIVE_UP_S)
    with device_pair("nixl") as made:
        made.landing._drain_s = DRAIN_S  # type: ignore[attr-defined]
        yield made


def hold(landing: Any) -> threading.Event:
    """The landing's thread stands still until the event is set."""
    go_on, is_held = threading.Event(), threading.Event()

    def stand_still() -> None:
        is_held.set()
        go_on.wait(100)

    landing._order(stand_still)
    assert is_held.wait(30)
    return go_on


def test_scattered_pages_arrive_with_equal_sums_and_nothing_else_changes(pair: DevicePair) -> None:
    rng = np.random.default_rng(1)
    src, dst = rng.permutation(N_PAGES)[:40].tolist(), rng.permutation(N_PAGES)[:40].tolist()
    pair.grant(1, *dst)
    pair.post(1, 1, src[:25], dst[:25])
    pair.post(2, 1, src[25:], dst[25:], first=25)
    posted = {p.post: p for p in pair.out.wait_for(2)}
    pair.landing.check(1, 0, 40)
    (checked,) = pair.into.wait_for(1)
    sums = np.concatenate([posted[1].checksums, posted[2].checksums])
    assert checked.checksums.tolist() == sums.tolist()
    assert pair.has(src, dst)
    rest = np.setdiff1d(np.arange(N_PAGES), dst)
    assert not pair.d.pages[rest].any()


def test_no_page_outside_of_the_receivers_pool_is_written(pair: DevicePair) -> None:
    pair.grant(1, 0)
    pair.post(1, 1, [0], [N_PAGES])
    pair.post(2, 1, [0], [-1])
    assert [p.ok for p in pair.out.wait_for(2)] == [False, False]


def test_a_grant_revoked_before_its_sender_connects_is_never_written(pair: DevicePair) -> None:
    pair.grant(1, 3)
    pair.grant(2, 4)
    pair.landing.revoke(1)
    assert pair.into.wait_for(1) == [Stopped(1)]
    pair.post(1, 1, [9], [3])
    pair.post(2, 2, [9], [4])
    assert {p.post: p.ok for p in pair.out.wait_for(2)} == {1: False, 2: True}
    assert not pair.d.pages[3].any()


def test_a_grant_revoked_later_is_stopped_by_the_senders_word_and_not_written_again(
    pair: DevicePair,
) -> None:
    pair.grant(1, 3)
    pair.grant(2, 4)
    pair.post(1, 1, [9], [3])
    pair.out.wait_for(1)
    pair.landing.revoke(1)
    assert pair.into.wait_for(1) == [Stopped(1)]
    pair.d.pages[3] = 0  # the page is somebody else's now
    pair.post(2, 1, [9], [3])
    pair.post(3, 2, [9], [4])
    assert [p.ok for p in pair.out.wait_for(3)] == [True, False, True]
    assert not pair.d.pages[3].any()
    assert pair.landing.dropped == {}


def test_a_revoked_sender_that_does_not_answer_loses_its_way_in_and_finds_another(
    pair: DevicePair,
) -> None:
    pair.grant(1, 3)
    pair.post(1, 1, [9], [3])
    pair.out.wait_for(1)
    go_on = hold(pair.outlet)
    began_s = time.monotonic()
    pair.landing.revoke(1)
    assert pair.into.wait_for(1) == [Stopped(1)]
    assert time.monotonic() - began_s >= DRAIN_S, "nothing says before that it stopped"
    assert pair.landing.dropped == {"stuck": 1}
    go_on.set()
    pair.grant(2, 4)
    for post in range(2, 6):  # the first may still meet the old connection
        pair.post(post, 2, [9], [4])
    assert pair.out.wait_for(5)[-1].ok
    assert pair.has([9], [4])


def test_a_sender_says_drained_only_after_its_last_write(
    pair: DevicePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.landing._drain_s = 60.0  # type: ignore[attr-defined]
    with monkeypatch.context() as slow:
        slow.setattr(NixlWrite, "state", lambda self: WriteState.UNDER_WAY)
        pair.grant(1, 3)
        pair.post(1, 1, [9], [3])
        wait_until(lambda: len(pair.outlet._parts) == 1)  # type: ignore[attr-defined]
        assert pair.out.hears_nothing(0.2)
        monkeypatch.setattr(nixl_outlet, "GIVE_UP_S", 60.0)
        pair.landing.revoke(1)
        assert pair.into.hears_nothing(0.3)
    assert pair.into.wait_for(1) == [Stopped(1)]
    assert [p.ok for p in pair.out.wait_for(1)] == [False]


def test_posts_to_a_receiver_that_stands_still_end_when_called_back(pair: DevicePair) -> None:
    pair.grant(1, *ALL)
    pair.grant(2, *ALL)
    pair.post(1, 1, [9], [3])
    pair.out.wait_for(1)
    go_on = hold(pair.landing)
    pair.post(2, 1, ALL, ALL)
    pair.post(3, 1, ALL, ALL)
    wait_until(lambda: len(pair.outlet._parts) == 2)  # type: ignore[attr-defined]
    assert pair.out.hears_nothing(0.2)
    began_s = time.monotonic()
    pair.outlet.cancel(1)
    pair.out.wait_for(2)
    assert time.monotonic() - began_s >= GIVE_UP_S, "the pages are still being read before"
    assert [p.ok for p in pair.out.wait_for(3)] == [True, False, False]
    go_on.set()
    pair.post(4, 2, ALL, ALL)
    assert pair.out.wait_for(4)[-1].ok, "a new connection"
    assert pair.has(ALL, ALL)


def test_closing_an_outlet_completes_its_posts(pair: DevicePair) -> None:
    pair.grant(1, *ALL)
    pair.post(1, 1, [9], [3])
    pair.out.wait_for(1)
    go_on = hold(pair.landing)
    pair.post(2, 1, ALL, ALL)
    pair.out.hears_nothing(0.1)
    pair.outlet.close()
    assert [p.ok for p in pair.outlet.poll()] == [False]
    go_on.set()
    pair.post(3, 1, [0], [0])
    assert [p.ok for p in pair.outlet.poll()] == [False]


def test_nothing_is_driven_while_nothing_moves(pair: DevicePair) -> None:
    pair.grant(1, *ALL)
    pair.post(1, 1, ALL, ALL)
    pair.out.wait_for(1)
    time.sleep(0.1)
    began_s, used_s = time.monotonic(), time.process_time()
    time.sleep(0.5)
    used_s = time.process_time() - used_s
    assert used_s < 0.2 * (time.monotonic() - began_s), "a thread spins"


# -- what may come over the control lane ----------------------------------------------------


def hello(**changed: Any) -> bytes:
    fields: dict[str, Any] = {
        "sender_epoch": 9,
        "receiver_epoch": D_EPOCH,
        "page_bytes": SIZE,
        "checksum": "mix64",
    }
    return framed(nixl_pb2.NixlRequest(hello=nixl_pb2.NixlHello(**(fields | changed))))


def framed(message: nixl_pb2.NixlRequest) -> bytes:
    raw = message.SerializeToString()
    return len(raw).to_bytes(4, "little") + raw


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x04\x00\x00\x00\xff\xff\xff\xff",
        framed(nixl_pb2.NixlRequest()),
        framed(nixl_pb2.NixlRequest(busy=nixl_pb2.NixlBusy(is_busy=True))),
        hello(sender_epoch=0),
        hello(receiver_epoch=3),
        hello(page_bytes=SIZE + 1),
        hello(checksum=""),
        hello(checksum="xxh3"),
        hello() + hello(),
    ],
)
def test_malformed_message_closes_its_connection_and_no_other(
    pair: DevicePair, junk: bytes
) -> None:
    pair.grant(1, 3, 4)
    pair.post(1, 1, [9], [3])
    pair.out.wait_for(1)
    with connect("tcp", pair.landing) as stream:  # type: ignore[arg-type]
        stream.sendall(junk)
        while stream.recv(1 << 16):  # a welcome, where there was one hello
            pass
        assert is_hung_up(stream)
    assert pair.landing.dropped["malformed"] == 1
    pair.post(2, 1, [8], [4], first=1)
    assert pair.out.wait_for(2)[1].ok


def test_a_sender_is_told_of_its_own_grants_alone(pair: DevicePair) -> None:
    pair.grant(1, 3)
    pair.landing.grant(9, 2, np.array([4]))
    pair.landing.grant(9, 5, np.array([6]))
    pair.landing.revoke(2)
    with connect("tcp", pair.landing) as stream:  # type: ignore[arg-type]
        stream.sendall(hello())
        lane = NixlChannel(stream, nixl_pb2.NixlResponse)
        messages: list[nixl_pb2.NixlResponse] = []
        while not messages:
            messages = lane.heard()
            time.sleep(0.01)
    welcome = messages[0].welcome
    assert (welcome.last_generation, list(welcome.open_generations)) == (5, [5])


# -- deaths ---------------------------------------------------------------------------------


def test_nothing_is_written_once_the_agent_is_closed_however_much_was_on_its_way() -> None:
    target, source = np.zeros((4096, SIZE), np.uint8), np.ones((4096, SIZE), np.uint8)
    n_files = len(os.listdir("/proc/self/fd"))
    d = NixlAgent("d", (region_of(target),))
    p = NixlAgent("p", (region_of(source),))
    p.meet(d.metadata, (region_of(target),), SIZE)
    everything = np.arange(4096, dtype=np.int64)
    writes = [p.write(everything, everything[::-1].copy()) for _ in range(4)]
    while not target.any():
        d.drive()
        assert writes[0].state() is WriteState.UNDER_WAY
    d.close()
    target[:] = 0  # the pages are somebody else's now
    while writes[-1].state() is WriteState.UNDER_WAY:
        pass
    assert writes[-1].state() is WriteState.FAILED
    p.close()
    p.close()
    assert not target.any()
    assert len(os.listdir("/proc/self/fd")) <= n_files, "connections that are still open"


async def test_pages_of_a_stopped_writer_are_free_when_its_way_in_is_closed() -> None:
    async with receiving(12_000, 4_000, "host", ("nixl",)) as (side, tasks):
        side.landings["nixl"]._drain_s = 3.0  # type: ignore[attr-defined]
        sending = await side.start_sender(tasks, "nixl", n_transfers=0)
        await side.wait_until("one landed", lambda: side.landed)
        for _ in range(50):  # in the middle of a transfer, not at its very end
            await side.wait_until("pages granted", lambda: side.pages.counts().used)
            side.pages.absolved.clear()  # a row that waited long on a busy machine was given up
            sending.signal(signal.SIGSTOP)
            await side.wait_until("suspicion, or it landed", lambda: not side.pages.counts().used)
            if side.pages.counts().quarantined:
                break
            sending.signal(signal.SIGCONT)
        assert side.pages.counts().quarantined
        assert not side.pages.absolved
        await side.wait_until("its way in closed", lambda: side.pages.counts().free == 12_000)
        assert not sending.has_ended()
        freed = np.asarray(side.pages.absolved)
        side.pages.check_integrity()
        row = side.pages.try_take(12_000)  # whoever has them next writes something else
        assert row is not None
        content = side.pool[freed].copy()
        sending.signal(signal.SIGCONT)
        side.landed.clear()
        await side.wait_until("it asks again", lambda: side.receiver.n_queued)
        assert (side.pool[freed] == content).all()
        side.pages.release(row)
        await side.wait_until("it goes on", lambda: len(side.landed) > 1)
        sending.signal(signal.SIGKILL)
        await side.wait_until("no page held", lambda: side.pages.counts().free == 12_000)


def test_a_dropped_sender_writes_nothing_more(pair: DevicePair) -> None:
    """Its agent is its way in: a peer that wrote by it finds it gone."""
    pair.grant(1, *ALL)
    pair.post(1, 1, [9], [3])
    pair.out.wait_for(1)
    (connection,) = pair.landing._listener.connections  # type: ignore[attr-defined]
    agent = connection._agent
    go_on = hold(pair.outlet)
    pair.landing.revoke(1)
    assert pair.into.wait_for(1) == [Stopped(1)]
    assert agent._agent is None
    go_on.set()


def land_until_killed(pipe: Any) -> None:
    pool = np.zeros((N_PAGES, 1 << 20), np.uint8)
    config = TransportConfig(transports=("nixl",))
    landing = open_landings(D_EPOCH, pool, config)["nixl"]
    landing.grant(P_EPOCH, 1, np.arange(N_PAGES))
    pipe.send((landing.address, landing.digests))
    pipe.recv()


def test_posts_to_a_receiver_that_is_killed_in_mid_write_end_at_once() -> None:
    context = get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=land_until_killed, args=(there,), daemon=True)
    child.start()
    address, digests = here.recv()
    hello = transfer_pb2.ReceiverHello(
        epoch=D_EPOCH, transport="nixl", transport_address=address, checksums=digests
    )
    pool = np.ones((N_PAGES, 1 << 20), np.uint8)
    outlet = OutletOpener(P_EPOCH, pool, TransportConfig(transports=("nixl",)))(hello)
    out = Ear(outlet)
    for post in range(100):
        outlet.post(post, 1, CopyPlan.of(0, ALL, ALL))
    assert out.wait_for(2)[0].ok
    child.kill()
    child.join()
    posted = out.wait_for(100)
    outlet.post(100, 1, CopyPlan.of(0, ALL, ALL))
    assert not out.wait_for(101)[-1].ok, "nobody is there"
    outlet.close()
    assert sorted(p.post for p in posted) == list(range(101))
    assert not posted[-2].ok, "it was killed in the middle"


# -- when it is offered ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transports", "has_fabric", "is_installed", "expected"),
    [
        (("shm", "nixl", "tcp"), True, True, ("shm", "nixl", "tcp")),
        (("shm", "nixl", "tcp"), False, True, ("shm", "tcp")),
        (("nixl",), False, True, ("nixl",)),
        (("nixl",), True, False, ()),
    ],
)
def test_nixl_is_offered_where_it_is_quicker_or_nothing_else_is_left(
    monkeypatch: pytest.MonkeyPatch,
    transports: tuple[str, ...],
    has_fabric: bool,
    is_installed: bool,
    expected: tuple[str, ...],
) -> None:
    monkeypatch.setattr(nixl_agent, "has_fabric", lambda: has_fabric)
    monkeypatch.setattr(nixl_agent, "is_installed", lambda: is_installed)
    pool = np.zeros((4, SIZE), np.uint8)
    assert TransportConfig(transports=transports).offered(pool) == expected
