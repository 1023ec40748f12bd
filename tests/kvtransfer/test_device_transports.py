"""Transports between pools of devices, on the double: late copies, faults, stalls, deaths."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from tests.kvtransfer.device_pair import (
    D_EPOCH,
    N_PAGES,
    P_EPOCH,
    SIZE,
    DevicePair,
    device_pair,
    is_given,
    take_small_slots,
    wait_until,
)
from tests.kvtransfer.test_streams import connect, is_hung_up
from twolane.kvtransfer import reasons
from twolane.kvtransfer.device import DeviceError
from twolane.kvtransfer.digests import mix64
from twolane.kvtransfer.testing.device import DoubleMemory
from twolane.kvtransfer.transport import Checked, Stopped
from twolane.kvtransfer.transports.common.frames import Hello, Pages, RingAt, Slot
from twolane.kvtransfer.transports.common.shared_memory import create_pool_memory
from twolane.kvtransfer.transports.mapped import ipc_outlet
from twolane.kvtransfer.transports.mapped.ipc_landing import IpcLanding
from twolane.kvtransfer.transports.registry import OutletOpener, TransportConfig
from twolane.kvtransfer.transports.stream.landing import StreamLanding
from twolane.v1 import transfer_pb2

EVERY = ["cuda_ipc", "shm", "unix", "tcp"]
STAGED = ["shm", "unix", "tcp"]  # the receiver writes, by way of slots in host memory


@pytest.fixture(autouse=True)
def small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    take_small_slots(monkeypatch)


@pytest.fixture(params=EVERY)
def pair(request: pytest.FixtureRequest) -> Iterator[DevicePair]:
    with device_pair(request.param) as made:
        yield made


@pytest.fixture(params=STAGED)
def staged(request: pytest.FixtureRequest) -> Iterator[DevicePair]:
    with device_pair(request.param) as made:
        yield made


def test_scattered_pages_arrive_with_equal_sums_and_nothing_else_changes(pair: DevicePair) -> None:
    rng = np.random.default_rng(1)
    src, dst = rng.permutation(N_PAGES)[:40].tolist(), rng.permutation(N_PAGES)[:40].tolist()
    pair.grant(1, *dst)
    pair.landing.check(1, 0, 25)
    pair.landing.check(1, 25, 15)
    pair.post(1, 1, src[:25], dst[:25])
    pair.post(2, 1, src[25:], dst[25:], first=25)
    posted = {p.post: p for p in pair.out.wait_for(2)}
    assert posted[1].ok
    assert posted[2].ok
    if pair.landing.sender_writes:  # looked at when it was written: not before
        pair.landing.check(1, 0, 40)
    checked = [c for c in pair.into.wait_for(2) if isinstance(c, Checked)]
    assert pair.has(src, dst)
    rest = np.setdiff1d(np.arange(N_PAGES), dst)
    assert not pair.d.pages[rest].any()
    expected = mix64(pair.p.pages, np.asarray(src))
    assert np.concatenate([posted[1].checksums, posted[2].checksums]).tolist() == expected.tolist()
    if not pair.landing.sender_writes:
        sums = {c.first: c.checksums for c in checked}
        assert np.concatenate([sums[0], sums[25]]).tolist() == expected.tolist()


def test_pages_that_changed_on_the_way_have_another_sum(pair: DevicePair) -> None:
    (pair.d if not pair.landing.sender_writes else pair.p).faults.corrupts = True
    pair.grant(1, 3, 4)
    pair.post(1, 1, [9, 8], [3, 4])
    (posted,) = pair.out.wait_for(1)
    pair.landing.check(1, 0, 2)
    (checked,) = pair.into.wait_for(1)
    assert (posted.checksums != checked.checksums).all()


def test_cuda_ipc_takes_no_sums_unless_asked() -> None:
    config = TransportConfig()
    assert [config.sums(name) for name in EVERY] == [False, True, True, True]
    with device_pair("cuda_ipc", checksums=False) as pair:
        assert pair.landing.digests == ()
        pair.grant(1, 3)
        pair.post(1, 1, [9], [3])
        assert pair.out.wait_for(1)[0].checksums.size == 0
        pair.landing.check(1, 0, 1)
        assert pair.into.wait_for(1)[0].checksums is None


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_posts_are_shared_out_among_several_sockets(kind: str) -> None:
    with device_pair(kind, sockets=3) as pair:
        pair.grant(1, *range(30))
        for i in range(15):
            pair.post(i, 1, [40 + i, i], [2 * i, 2 * i + 1], first=2 * i)
        assert all(p.ok for p in pair.out.wait_for(15))
        pair.landing.check(1, 0, 30)
        pair.into.wait_for(1)
        src = [page for i in range(15) for page in (40 + i, i)]
        assert pair.has(src, list(range(30)))


# -- cancel, failure, backpressure ----------------------------------------------------------


def test_a_cancelled_post_is_complete_only_when_its_copies_are_over(pair: DevicePair) -> None:
    pair.p.stall()
    pair.grant(1, *range(60))
    pair.post(1, 1, list(range(60)), list(range(60)))
    pair.post(2, 2, [1], [62])
    wait_until(lambda: is_given(pair.p))
    pair.outlet.cancel(1)
    assert pair.out.hears_nothing(), "a copy that stands still may still read the page"
    pair.p.resume()
    news = {p.post: p.ok for p in pair.out.wait_for(2)}
    assert news == {1: False, 2: True}
    assert not pair.has(list(range(60)), list(range(60))), "it ended soon"


def test_a_post_is_called_back_though_each_slice_of_it_ends_before_the_lane_is_looked_at_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ipc_outlet, "_COPY_PAUSE_S", 0.5)
    monkeypatch.setattr(ipc_outlet, "SLICES_AHEAD", 2)
    with device_pair("cuda_ipc") as pair:
        pair.p.faults.copy_s = 0.2
        pair.grant(1, *range(60))
        pair.post(1, 1, list(range(60)), list(range(60)))
        wait_until(lambda: bool(pair.d.pages[0].any()))
        pair.outlet.cancel(1)
        pair.p.faults.copy_s = 0.005
        assert [p.ok for p in pair.out.wait_for(1)] == [False]
        assert not pair.has(list(range(60)), list(range(60))), "it ended soon"


def test_a_landing_that_takes_no_sums_answers_at_once_and_has_no_thread() -> None:
    before = set(threading.enumerate())
    with closing(IpcLanding(DoubleMemory(N_PAGES, SIZE), checksums=False)) as landing:
        assert set(threading.enumerate()) <= before
        landing.grant(P_EPOCH, 1, np.array([3, 4]))
        landing.check(1, 1, 1)
        landing.check(2, 0, 1)
        assert landing.poll() == [Checked(1, 1, 1, None)]
        landing.revoke(1)
        landing.check(1, 0, 1)
        assert landing.poll() == [Stopped(1)]


def test_copies_that_failed_fail_their_post_and_the_next_ones_work(pair: DevicePair) -> None:
    pair.p.faults.fails = True
    pair.grant(1, 1, 2, 3)
    pair.post(1, 1, [1, 2, 3], [1, 2, 3])
    assert [p.ok for p in pair.out.wait_for(1)] == [False]
    assert not pair.d.pages[[1, 2, 3]].any()
    pair.p.faults.fails = False
    for stream in pair.p.copy_streams:
        stream.forgive()
    pair.grant(2, 4)
    pair.post(2, 2, [1], [4])
    assert pair.out.wait_for(2)[1].ok
    pair.landing.check(2, 0, 1)
    pair.into.wait_for(1)
    assert pair.has([1], [4])


def test_a_receiver_whose_device_stands_still_holds_up_its_sender_and_loses_nothing(
    staged: DevicePair,
) -> None:
    staged.d.stall()
    staged.grant(1, *range(60))
    staged.post(1, 1, list(range(60)), list(range(60)))
    staged.landing.check(1, 0, 60)
    assert staged.into.hears_nothing()
    staged.d.resume()
    assert staged.out.wait_for(1)[0].ok
    assert isinstance(staged.into.wait_for(1)[0], Checked)
    assert staged.has(list(range(60)), list(range(60)))


def test_shared_slots_bound_what_is_under_way() -> None:
    with device_pair("shm") as pair:
        pair.d.stall()
        pair.grant(1, *range(60))
        pair.post(1, 1, list(range(60)), list(range(60)))
        assert pair.out.hears_nothing(0.2), "four slots of two pages, and sixty to send"
        pair.d.resume()
        assert pair.out.wait_for(1)[0].ok


def test_closing_an_outlet_completes_its_posts_and_stops_its_copies(pair: DevicePair) -> None:
    pair.p.faults.copy_s = 0.2
    pair.grant(1, *range(60))
    pair.post(1, 1, list(range(60)), list(range(60)))
    wait_until(lambda: is_given(pair.p))
    assert not pair.outlet.close_soon()
    pair.p.faults.copy_s = 0.005
    pair.outlet.close()
    assert [p.ok for p in pair.outlet.poll()] == [False]
    before = pair.d.pages.copy()
    if pair.landing.sender_writes:
        time.sleep(0.05)
        assert (pair.d.pages == before).all()
    pair.post(2, 1, [0], [0])
    assert [p.ok for p in pair.outlet.poll()] == [False]


# -- who may write where --------------------------------------------------------------------


def test_stopped_comes_only_when_no_copy_to_the_device_is_under_way(staged: DevicePair) -> None:
    staged.d.stall()
    staged.grant(1, 3, 4)
    staged.post(1, 1, [9, 8], [3, 4])
    assert staged.out.wait_for(1)[0].ok
    wait_until(lambda: is_given(staged.d))  # its copies, which stand still
    staged.landing.revoke(1)
    assert staged.into.hears_nothing(), "the device may still write to the pages"
    staged.d.resume()
    assert staged.into.wait_for(1) == [Stopped(1)]
    staged.d.pages[[3, 4]] = 0  # the pages are somebody else's now
    staged.post(2, 1, [9, 8], [3, 4])
    staged.out.wait_for(2)
    wait_until(lambda: staged.landing.dropped == {reasons.GENERATION: 1})
    assert not staged.d.pages[[3, 4]].any()


def test_a_page_is_claimed_once(staged: DevicePair) -> None:
    staged.grant(1, 3)
    staged.post(1, 1, [9], [3])
    staged.post(2, 1, [8], [3])
    staged.landing.check(1, 0, 1)
    staged.into.wait_for(1)
    staged.out.wait_for(2)
    wait_until(lambda: staged.landing.dropped == {reasons.DUPLICATE: 1})
    assert staged.has([9], [3])


def test_pages_whose_copy_to_the_device_failed_never_land(staged: DevicePair) -> None:
    staged.d.faults.fails = True
    staged.grant(1, 3)
    staged.landing.check(1, 0, 1)
    staged.post(1, 1, [9], [3])
    assert staged.out.wait_for(1)[0].ok
    assert staged.into.hears_nothing()
    staged.landing.revoke(1)
    assert staged.into.wait_for(1) == [Stopped(1)]


def test_cuda_ipc_writes_no_page_outside_of_the_receivers_pool() -> None:
    with device_pair("cuda_ipc") as pair:
        pair.post(1, 1, [0], [N_PAGES])
        pair.post(2, 1, [0], [-1])
        assert [p.ok for p in pair.out.wait_for(2)] == [False, False]


def test_revoking_a_grant_that_the_sender_writes_to_is_no_proof() -> None:
    with device_pair("cuda_ipc") as pair:
        assert pair.landing.sender_writes
        pair.p.stall()
        pair.grant(1, 3)
        pair.post(1, 1, [9], [3])
        pair.landing.revoke(1)
        assert pair.into.wait_for(1) == [Stopped(1)]
        pair.p.resume()
        pair.out.wait_for(1)
        assert pair.has([9], [3]), "this is why only the sender's word counts"


# -- what may come over a socket ------------------------------------------------------------

HELLO = Hello(P_EPOCH, D_EPOCH, SIZE, "mix64").pack()


@pytest.mark.parametrize(
    "junk",
    [
        Hello(P_EPOCH, D_EPOCH, SIZE, "xxh3").pack(),
        Hello(P_EPOCH, D_EPOCH, SIZE, "").pack(),
        HELLO + Pages(1, SIZE, 0, 1).pack(),
        HELLO + Slot(1, 0, 0, 1).pack(),
        HELLO + RingAt(2, 9, 1).pack() + b"/etc/motd",
        HELLO + RingAt(2, 18, 1).pack() + b"/proc/1/fd/0:1:819",
    ],
)
def test_a_shared_landing_takes_slots_of_a_ring_and_nothing_else(junk: bytes) -> None:
    with device_pair("shm") as pair:
        assert isinstance(pair.landing, StreamLanding)
        pair.grant(1, 3)
        with connect("unix", pair.landing) as stream:
            stream.sendall(junk)
            assert is_hung_up(stream)
        assert not pair.d.pages.any()


def test_slots_outside_of_the_ring_are_refused() -> None:
    memory = create_pool_memory(4 * SIZE, "ring")
    text = memory.address.encode()
    with device_pair("shm") as pair:
        assert isinstance(pair.landing, StreamLanding)
        pair.grant(1, *range(8))
        for slot, n_pages in ((2, 1), (0, 3), (0, 0)):
            with connect("unix", pair.landing) as stream:
                stream.sendall(HELLO + RingAt(2, len(text), 2).pack() + text)
                stream.sendall(Slot(1, slot, 0, n_pages).pack())
                assert is_hung_up(stream)
        assert not pair.d.pages.any()
    memory.close()


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_ring_is_mapped_for_no_other_transport(kind: str) -> None:
    memory = create_pool_memory(4 * SIZE, "ring")
    text = memory.address.encode()
    with device_pair(kind) as pair:
        assert isinstance(pair.landing, StreamLanding)
        with connect(kind, pair.landing) as stream:
            stream.sendall(HELLO + RingAt(2, len(text), 2).pack() + text)
            assert is_hung_up(stream)
    memory.close()


@pytest.mark.parametrize("kind", STAGED)
def test_a_broken_connection_fails_its_post_and_the_next_one_connects_again(kind: str) -> None:
    import socket

    with device_pair(kind) as pair:
        pair.grant(1, 1, 2)
        pair.post(1, 1, [5], [1])
        assert pair.out.wait_for(1)[0].ok
        wait_until(lambda: pair.has([5], [1]))  # over shm, its slot ends with the connection
        pair.outlet._stream.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
        pair.post(2, 1, [6], [2], first=1)
        assert not pair.out.wait_for(2)[1].ok
        pair.post(3, 1, [6], [2], first=1)
        assert pair.out.wait_for(3)[2].ok
        pair.landing.check(1, 0, 2)
        pair.into.wait_for(1)
        assert pair.has([5, 6], [1, 2])


# -- peers that cannot be reached -----------------------------------------------------------


def test_a_pool_that_cannot_be_mapped_is_told_at_once() -> None:
    with device_pair("cuda_ipc") as pair:
        pair.p.faults.refuses_peers = True
        hello = transfer_pb2.ReceiverHello(
            epoch=D_EPOCH, transport="cuda_ipc", transport_address=pair.landing.address
        )
        with pytest.raises(DeviceError, match="no peer access"):
            OutletOpener(P_EPOCH, pair.p, TransportConfig())(hello)
