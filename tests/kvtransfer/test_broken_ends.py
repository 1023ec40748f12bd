"""Ends whose peer or device breaks in the middle: what they had taken is given back, and the others
go on."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from tests.kvtransfer.device_pair import (
    D_EPOCH,
    N_PAGES,
    P_EPOCH,
    SIZE,
    DevicePair,
    device_pair,
    wait_until,
)
from twolane.kvtransfer.copy_plan import PageIds
from twolane.kvtransfer.device import Bytes, DeviceError, Fence
from twolane.kvtransfer.layouts.sources import Source
from twolane.kvtransfer.testing.device import DoubleCopyStream, DoubleMemory, DoublePeer
from twolane.kvtransfer.transport import Stopped
from twolane.kvtransfer.transports.common.claims import LandingTable
from twolane.kvtransfer.transports.common.pinned_ring import N_SLOTS
from twolane.kvtransfer.transports.mapped.ipc_outlet import IpcOutlet
from twolane.kvtransfer.transports.registry import OutletOpener, TransportConfig
from twolane.kvtransfer.transports.stream import device_destination, slot_outlet
from twolane.kvtransfer.transports.stream import source as page_source
from twolane.kvtransfer.transports.stream.device_destination import DeviceDestination
from twolane.kvtransfer.transports.stream.source import DeviceSource
from twolane.v1 import transfer_pb2

STAGED = ["shm", "unix", "tcp"]  # by way of slots in host memory


@pytest.fixture(autouse=True)
def small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pages: so that posts of these tests take several."""
    monkeypatch.setattr(slot_outlet, "SHARED_SLOT_BYTES", 2 * SIZE)
    for start in (page_source.DeviceSource.__init__, device_destination.DeviceDestination.__init__):
        monkeypatch.setitem(start.__kwdefaults__, "slot_bytes", 2 * SIZE)  # type: ignore[arg-type]


def destination_of(pair: DevicePair) -> DeviceDestination:
    destination = pair.landing._destination  # type: ignore[attr-defined]
    assert isinstance(destination, DeviceDestination)
    return destination


def source_of(pair: DevicePair) -> DeviceSource:
    source = pair.outlet._source  # type: ignore[attr-defined]
    assert isinstance(source, DeviceSource)
    return source


class LastSight:
    """See `Fence`: when it is found done, `then` happens before anybody acts upon it."""

    def __init__(self, fence: Fence, then: Callable[[], None]) -> None:
        self._fence = fence
        self._then = then

    def is_done(self) -> bool:
        is_done = self._fence.is_done()
        if is_done:
            self._then()
        return is_done


# -- receivers ------------------------------------------------------------------------------


def test_a_sender_that_dies_while_its_slot_is_copied_does_not_end_the_landing() -> None:
    with device_pair("shm") as pair:
        destination = destination_of(pair)
        lane = destination._copy_stream
        real = lane.mark

        def die() -> None:
            pair.outlet._stream.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]

        lane.mark = lambda: LastSight(real(), die)  # type: ignore[method-assign]
        pair.d.stall()
        pair.grant(1, 3, 4)
        pair.post(1, 1, [9, 8], [3, 4])
        assert pair.out.wait_for(1)[0].ok
        wait_until(lambda: bool(destination._writes))
        pair.landing.revoke(1)
        pair.d.resume()
        assert pair.into.wait_for(1) == [Stopped(1)]
        lane.mark = real  # type: ignore[method-assign]
        pair.grant(2, 5)
        pair.post(2, 2, [7], [5])  # finds that its connection broke
        pair.out.wait_for(2)
        pair.post(3, 2, [7], [5])
        assert pair.out.wait_for(3)[2].ok
        wait_until(lambda: pair.has([7], [5]))


def test_memory_of_a_sender_that_cannot_be_unpinned_does_not_end_the_landing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with device_pair("shm") as pair:
        real = pair.d.unpin

        def refuse(buffer: Bytes) -> None:
            real(buffer)
            raise DeviceError("no such memory")

        pair.d.unpin = refuse  # type: ignore[method-assign]
        pair.grant(1, 3)
        pair.post(1, 1, [9], [3])
        assert pair.out.wait_for(1)[0].ok
        wait_until(lambda: pair.has([9], [3]))  # so its ring is pinned here
        pair.outlet.close()
        wait_until(lambda: "no such memory" in caplog.text)
        pair.landing.revoke(1)
        assert pair.into.wait_for(1) == [Stopped(1)]


# -- senders --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STAGED)
def test_copies_that_are_refused_at_launch_keep_no_slot_and_end_before_their_post(
    kind: str,
) -> None:
    with device_pair(kind) as pair:
        source = source_of(pair)
        lane: Any = source._copy_stream
        real = lane.to_host

        def refuse(pages: PageIds, buffer: Bytes) -> None:
            real(pages, buffer)  # some of it is under way
            raise DeviceError("out of memory")

        lane.to_host = refuse
        for post in range(1, N_SLOTS + 2):
            pair.p.stall()
            pair.post(post, 1, [post], [post])
            assert pair.out.hears_nothing(0.02), "its page may still be read"
            pair.p.resume()
            assert not pair.out.wait_for(post)[-1].ok
        assert len(source.ring.free) == N_SLOTS
        lane.to_host = real
        pair.grant(2, 9)
        pair.post(99, 2, [9], [9])
        assert pair.out.wait_for(N_SLOTS + 2)[-1].ok
        wait_until(lambda: pair.has([9], [9]))


# -- ends that cannot be opened -------------------------------------------------------------


class Full(DoubleMemory):
    """Has room for so many lanes and pinned buffers alone."""

    def __init__(self, *, lanes: int = 99, buffers: int = 99) -> None:
        super().__init__(N_PAGES, SIZE)
        self._lanes_left, self._buffers_left = lanes, buffers
        self.peers: list[DoublePeer] = []

    def open_copy_stream(self, source: Source | None = None) -> DoubleCopyStream:
        if not self._lanes_left:
            raise DeviceError("no more lanes")
        self._lanes_left -= 1
        return super().open_copy_stream(source)

    def pin(self, buffer: Bytes) -> None:
        if not self._buffers_left:
            raise DeviceError("no more pinned memory")
        self._buffers_left -= 1
        super().pin(buffer)

    def open_pages(self, address: str, page_bytes: int) -> DoublePeer:
        self.peers.append(super().open_pages(address, page_bytes))
        return self.peers[-1]

    @property
    def n_running(self) -> int:
        """Lanes that nobody has closed."""
        return sum(stream._thread.is_alive() for stream in self.copy_streams)


def test_an_outlet_without_a_lane_leaves_no_pool_mapped() -> None:
    with device_pair("cuda_ipc") as pair, closing(Full(lanes=0)) as memory:
        with pytest.raises(DeviceError, match="no more lanes"):
            IpcOutlet(pair.landing.address, memory, digest="")
        assert [peer.is_closed for peer in memory.peers] == [True]


def test_a_source_without_a_lane_leaves_nothing_pinned() -> None:
    with closing(Full(lanes=0)) as memory:
        with pytest.raises(DeviceError, match="no more lanes"):
            DeviceSource(memory, "mix64")
        assert memory.n_pinned == 0


def test_a_ground_without_pinned_memory_leaves_no_lane() -> None:
    with closing(Full(buffers=0)) as memory:
        with pytest.raises(DeviceError, match="no more pinned memory"):
            DeviceDestination(memory, LandingTable(checksums=True), checksums=True)
        assert memory.n_running == 0


def test_of_several_sockets_none_stays_when_the_last_cannot_be_opened() -> None:
    with device_pair("tcp") as pair, closing(Full(lanes=2)) as memory:
        hello = transfer_pb2.ReceiverHello(
            epoch=D_EPOCH,
            transport="tcp",
            transport_address=pair.landing.address,
            checksums=pair.landing.digests,
        )
        config = TransportConfig(transports=("tcp",), sockets=3)
        with pytest.raises(DeviceError, match="no more lanes"):
            OutletOpener(P_EPOCH, memory, config)(hello)
        assert (memory.n_pinned, memory.n_running) == (0, 0)
