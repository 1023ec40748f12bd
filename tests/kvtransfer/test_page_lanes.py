"""Page lanes: who may connect to a tcp landing, what is readable on the way, what is believed."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

from tests.kvtransfer.device_pair import D_EPOCH, P_EPOCH, Ear
from twolane.kvtransfer import reasons
from twolane.kvtransfer.copy_plan import CopyPlan
from twolane.kvtransfer.layouts.sources import WholePages
from twolane.kvtransfer.page_lane import PageLane, PageLaneError, ReceiverLane, SenderLane
from twolane.kvtransfer.testing.device import DeviceFaults, DoubleMemory
from twolane.kvtransfer.transport import Checked
from twolane.kvtransfer.transports.common.addresses import listen_tcp
from twolane.kvtransfer.transports.common.claims import LandingTable
from twolane.kvtransfer.transports.common.frames import Hello
from twolane.kvtransfer.transports.common.key_proof import ReceiverHandshake, SenderHandshake
from twolane.kvtransfer.transports.common.listener import ListenerConfig
from twolane.kvtransfer.transports.registry import OutletOpener, TransportConfig, open_landings
from twolane.kvtransfer.transports.stream.landing import StreamLanding
from twolane.kvtransfer.transports.stream.outlet import StreamOutlet
from twolane.kvtransfer.transports.stream.sink import HostDestination
from twolane.kvtransfer.transports.stream.source import HostSource
from twolane.v1 import transfer_pb2

LANES = tuple(PageLane)
PROTECTED = (PageLane.KEYED, PageLane.ENCRYPTED)
SIZE = 4096
KEY = bytes(range(32))


def random_pages(n: int, size: int = SIZE) -> Any:
    return np.random.default_rng(n).integers(0, 256, (n, size), dtype=np.uint8)


def hello_of(landing: Any, **fields: Any) -> transfer_pb2.ReceiverHello:
    return transfer_pb2.ReceiverHello(
        **{
            "epoch": D_EPOCH,
            "transport": "tcp",
            "transport_address": landing.address,
            "checksums": landing.digests,
            "page_lane": landing.lane.name,
            "page_key": landing.lane.key_for(P_EPOCH),
            **fields,
        }
    )


@contextmanager
def landing_of(
    pool: Any, lane: ReceiverLane, limits: ListenerConfig | None = None
) -> Iterator[StreamLanding]:
    listener, address = listen_tcp("127.0.0.1", "")
    place = HostDestination(pool, LandingTable(checksums=True), checksums=True)
    landing = StreamLanding(listener, address, D_EPOCH, place, lane=lane, limits=limits)
    try:
        yield landing
    finally:
        landing.close()


@contextmanager
def outlet_to(
    address: str, pool: Any, lane: SenderLane, handshake_s: float = 30.0
) -> Iterator[StreamOutlet]:
    source = HostSource(WholePages(pool), "xxh3")
    outlet = StreamOutlet(
        "tcp", address, P_EPOCH, D_EPOCH, source, digest="xxh3", lane=lane, handshake_s=handshake_s
    )
    try:
        yield outlet
    finally:
        outlet.close()


class Relay:
    """Passes bytes on between a sender and a landing, and keeps what the sender sent.

    `change(so far, data)` may alter what goes to the landing.
    """

    def __init__(self, address: str, change: Any = lambda so_far, data: data) -> None:
        self.sent = b""
        self._change = change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        host, _, port = address.rpartition(":")
        self._there = socket.create_connection((host, int(port)))
        self._threads = [threading.Thread(target=work) for work in (self._forth, self._back)]
        self._here: socket.socket | None = None
        self._met = threading.Event()
        for thread in self._threads:
            thread.start()

    def _forth(self) -> None:
        with suppress(OSError):
            self._here, _ = self._listener.accept()
            self._met.set()
            while data := self._here.recv(1 << 16):
                self._there.sendall(self._change(self.sent, data))
                self.sent += data
            self._there.shutdown(socket.SHUT_WR)
        self._met.set()

    def _back(self) -> None:
        self._met.wait()
        with suppress(OSError):
            while self._here is not None and (data := self._there.recv(1 << 16)):
                self._here.sendall(data)
        if self._here is not None:
            self._here.close()

    def close(self) -> None:
        for one in (self._listener, self._there, self._here):
            with suppress(OSError):
                if one is not None:
                    one.shutdown(socket.SHUT_RDWR)
            if one is not None:
                one.close()
        for thread in self._threads:
            thread.join()


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("size", [256, 4096, 300_000, 1 << 20])
def test_pages_arrive_whole_by_every_lane_whatever_their_size(lane: PageLane, size: int) -> None:
    n = max(4, min(64, (4 << 20) // size))
    ours, theirs = random_pages(n, size), np.zeros((n, size), dtype=np.uint8)
    config = TransportConfig(transports=("tcp",), checksums=True, sockets=2, page_lane=lane)
    (landing,) = open_landings(D_EPOCH, theirs, config).values()
    outlet = OutletOpener(P_EPOCH, ours, config)(hello_of(landing))
    out, into = Ear(outlet), Ear(landing)
    backwards = np.arange(n, dtype=np.int64)[::-1].copy()
    landing.grant(P_EPOCH, 1, backwards)
    plans = [(first, np.arange(n, dtype=np.int64)[first::2]) for first in (0, 1)]
    at = 0
    for post, (_, pages) in enumerate(plans):
        outlet.post(post, 1, CopyPlan(at, pages, pages))
        landing.check(1, at, len(pages))
        at += len(pages)
    posted = {one.post: one for one in out.wait_for(2)}
    checked = {one.first: one for one in into.wait_for(2)}
    sent = np.concatenate([pages for _, pages in plans])
    assert (theirs[backwards] == ours[sent]).all()
    assert [posted[i].ok for i in (0, 1)] == [True, True]
    for post, first in enumerate((0, len(plans[0][1]))):
        assert (posted[post].checksums == checked[first].checksums).all()
    outlet.close()
    landing.close()


@pytest.mark.parametrize("lane", PROTECTED)
def test_pages_of_devices_arrive_by_lanes_with_a_key(lane: PageLane) -> None:
    memories = [DoubleMemory(16, SIZE, faults=DeviceFaults()) for _ in range(2)]
    ours, theirs = memories
    ours.pages[:] = random_pages(16)
    config = TransportConfig(transports=("tcp",), checksums=True, page_lane=lane)
    (landing,) = open_landings(D_EPOCH, theirs, config).values()
    outlet = OutletOpener(P_EPOCH, ours, config)(hello_of(landing))
    into = Ear(landing)
    pages = np.arange(16, dtype=np.int64)
    landing.grant(P_EPOCH, 1, pages)
    landing.check(1, 0, 16)
    outlet.post(1, 1, CopyPlan(0, pages, pages))
    assert isinstance(into.wait_for(1)[0], Checked)
    assert (theirs.pages == ours.pages).all()
    outlet.close()
    landing.close()
    for memory in memories:
        memory.close()


@pytest.mark.parametrize("lane", LANES)
def test_only_the_encrypted_lane_hides_pages_from_those_on_the_way(lane: PageLane) -> None:
    ours, theirs = random_pages(4), np.zeros((4, SIZE), dtype=np.uint8)
    pages = np.arange(4, dtype=np.int64)
    receiver = ReceiverLane.draw(lane)
    with landing_of(theirs, receiver) as landing:
        relay = Relay(landing.address)
        into = Ear(landing)
        landing.grant(P_EPOCH, 1, pages)
        landing.check(1, 0, 4)
        with outlet_to(relay.address, ours, SenderLane(lane, receiver.key_for(P_EPOCH))) as outlet:
            outlet.post(1, 1, CopyPlan(0, pages, pages))
            into.wait_for(1)
        relay.close()
    assert (theirs == ours).all()
    assert (ours[2].tobytes()[:64] in relay.sent) == (lane is not PageLane.ENCRYPTED)
    assert receiver.secret == b"" or receiver.key_for(P_EPOCH) not in relay.sent


def test_a_byte_that_was_changed_on_the_way_ends_the_connection_and_lands_nowhere() -> None:
    def change(so_far: bytes, data: bytes) -> bytes:
        at = 5000 - len(so_far)
        if not 0 <= at < len(data):
            return data
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    ours, theirs = random_pages(4), np.zeros((4, SIZE), dtype=np.uint8)
    pages = np.arange(4, dtype=np.int64)
    receiver = ReceiverLane.draw(PageLane.ENCRYPTED)
    with landing_of(theirs, receiver) as landing:
        relay = Relay(landing.address, change)
        lane = SenderLane(PageLane.ENCRYPTED, receiver.key_for(P_EPOCH))
        landing.grant(P_EPOCH, 1, pages)
        landing.check(1, 0, 4)
        with outlet_to(relay.address, ours, lane) as outlet:
            out = Ear(outlet)
            outlet.post(1, 1, CopyPlan(0, pages, pages))
            out.wait_for(1)
            wait_for(lambda: landing.dropped[reasons.MALFORMED] == 1)
        relay.close()
        assert landing.poll() == [], "an altered record was taken for pages"


@pytest.mark.parametrize("lane", PROTECTED)
def test_a_sender_without_the_key_gets_no_byte_in_and_is_counted(lane: PageLane) -> None:
    ours, theirs = random_pages(4), np.zeros((4, SIZE), dtype=np.uint8)
    receiver = ReceiverLane.draw(lane)
    with landing_of(theirs, receiver) as landing:
        landing.grant(P_EPOCH, 1, np.arange(4, dtype=np.int64))
        stream = dial(landing)
        handshake = SenderHandshake(KEY, Hello(P_EPOCH, D_EPOCH, SIZE, lane=lane).pack())
        stream.sendall(handshake.first)
        with pytest.raises(PageLaneError, match="did not prove"):
            handshake.finish(read(stream, SenderHandshake.REPLY_BYTES))
        stream.sendall(bytes(32))
        assert stream.recv(1) == b""
        stream.close()
        assert landing.dropped[reasons.UNPROVEN] == 1
        for wrong in (PageLane.PLAIN, *(one for one in PROTECTED if one is not lane)):
            key = b"" if wrong is PageLane.PLAIN else receiver.key_for(P_EPOCH)
            with outlet_to(landing.address, ours, SenderLane(wrong, key)) as outlet:
                seen = landing.dropped[reasons.MALFORMED]
                outlet.post(1, 1, CopyPlan(0, *[np.arange(4, dtype=np.int64)] * 2))
                wait_for(lambda seen=seen: landing.dropped[reasons.MALFORMED] > seen)
        key_of_another = receiver.key_for(P_EPOCH + 1)
        with outlet_to(landing.address, ours, SenderLane(lane, key_of_another)) as outlet:
            out = Ear(outlet)
            outlet.post(1, 1, CopyPlan(0, *[np.arange(4, dtype=np.int64)] * 2))
            assert not out.wait_for(1)[0].ok
    assert not theirs.any()


@pytest.mark.parametrize("lane", PROTECTED)
def test_a_connection_that_was_recorded_opens_no_second_one(lane: PageLane) -> None:
    ours, theirs = random_pages(4), np.zeros((4, SIZE), dtype=np.uint8)
    pages = np.arange(4, dtype=np.int64)
    receiver = ReceiverLane.draw(lane)
    with landing_of(theirs, receiver) as landing:
        relay = Relay(landing.address)
        into = Ear(landing)
        landing.grant(P_EPOCH, 1, pages)
        landing.check(1, 0, 4)
        with outlet_to(relay.address, ours, SenderLane(lane, receiver.key_for(P_EPOCH))) as outlet:
            outlet.post(1, 1, CopyPlan(0, pages, pages))
            into.wait_for(1)
        relay.close()
        theirs[:] = 0
        landing.grant(P_EPOCH, 2, pages)
        with dial(landing) as again:
            with suppress(ConnectionError):
                again.sendall(relay.sent)
            wait_for(lambda: landing.dropped[reasons.UNPROVEN] == 1)
    assert not theirs.any()


def test_a_receiver_cannot_talk_a_sender_into_less_protection() -> None:
    theirs = np.zeros((4, SIZE), dtype=np.uint8)
    with landing_of(theirs, ReceiverLane.draw(PageLane.PLAIN)) as landing:
        config = TransportConfig(transports=("tcp",), page_lane=PageLane.ENCRYPTED)
        opener = OutletOpener(P_EPOCH, random_pages(4), config)
        for lane in ("", "plain", "keyed"):
            with pytest.raises(PageLaneError, match=r".* at the receiver, encrypted here"):
                opener(hello_of(landing, page_lane=lane))
        with pytest.raises(PageLaneError, match="a key of 0 bytes"):
            opener(hello_of(landing, page_lane="encrypted", page_key=b""))


def stalling(landing: StreamLanding, lane: SenderLane, part: int) -> socket.socket:
    """A connection that has sent so many bytes of the handshake, and sends no more. On a busy
    machine it may be turned out before: then it is another one."""
    while True:
        stalled = dial(landing)
        hello = Hello(P_EPOCH, D_EPOCH, SIZE, lane=lane.name).pack()
        handshake = SenderHandshake(lane.key, hello)
        try:
            stalled.sendall(handshake.first[:part])
            if part > len(handshake.first):
                proof = handshake.finish(read(stalled, SenderHandshake.REPLY_BYTES))
                stalled.sendall(proof[: part - len(handshake.first)])
        except ConnectionError:
            stalled.close()
        else:
            return stalled


@pytest.mark.parametrize("part", [0, 20, 40, 64, 80])
def test_a_peer_that_stalls_in_the_handshake_is_turned_out_in_time_and_delays_nobody(
    part: int,
) -> None:
    ours, theirs = random_pages(4), np.zeros((4, SIZE), dtype=np.uint8)
    pages = np.arange(4, dtype=np.int64)
    receiver = ReceiverLane.draw(PageLane.ENCRYPTED)
    lane = SenderLane(PageLane.ENCRYPTED, receiver.key_for(P_EPOCH))
    with landing_of(theirs, receiver, ListenerConfig(hello_within_s=60.0)) as landing:
        into = Ear(landing)
        beside = stalling(landing, lane, part)
        landing.grant(P_EPOCH, 1, pages)
        landing.check(1, 0, 4)
        with outlet_to(landing.address, ours, lane) as outlet:
            outlet.post(1, 1, CopyPlan(0, pages, pages))
            into.wait_for(1)
        assert not landing.dropped["hello"]
        beside.close()
        landing._listener._config = ListenerConfig(hello_within_s=0.3)  # of those that come now
        stalled = stalling(landing, lane, part)
        wait_for(lambda: landing.dropped["hello"] > 0)
        with suppress(ConnectionResetError):
            while stalled.recv(4096):
                pass
        stalled.close()


def test_a_receiver_that_stalls_in_the_handshake_fails_the_post_in_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{silent.getsockname()[1]}"
    pages = np.arange(4, dtype=np.int64)
    lane = SenderLane(PageLane.KEYED, KEY)
    caplog.set_level(logging.WARNING)
    with outlet_to(address, random_pages(4), lane, 0.05) as outlet:
        out = Ear(outlet)
        for post in (1, 2):
            outlet.post(post, 1, CopyPlan(0, pages, pages))
        assert [one.ok for one in out.wait_for(2)] == [False, False]
    silent.close()
    (record,) = [one for one in caplog.records if "no pages to" in one.message]
    assert "proved no key within 0.05 s" in record.message


def test_a_post_that_is_called_back_while_the_receiver_reads_nothing_frees_its_pages() -> None:
    """What is encrypted already goes out later; pages are not read any more, and nothing grows."""
    receiver = ReceiverLane(PageLane.ENCRYPTED, KEY)
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    n = (32 << 20) // SIZE
    pages = np.arange(n, dtype=np.int64)
    lane = SenderLane(PageLane.ENCRYPTED, receiver.key_for(P_EPOCH))
    with outlet_to(address, random_pages(n), lane) as outlet:
        out = Ear(outlet)
        outlet.post(1, 1, CopyPlan(0, pages, pages))
        peer, _ = listener.accept()
        hello = read(peer, 32)
        handshake = ReceiverHandshake(lane.key, hello)
        peer.sendall(handshake.take(read(peer, 32)))
        handshake.take(read(peer, 32))
        assert handshake.is_done
        wait_for(lambda: outlet.n_moved > 0)
        outlet.cancel(1)
        assert not out.wait_for(1)[0].ok
        peer.close()
    listener.close()


def dial(landing: StreamLanding) -> socket.socket:
    host, _, port = landing.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30.0)


def read(stream: socket.socket, n_bytes: int) -> bytes:
    data = b""
    while len(data) < n_bytes:
        part = stream.recv(n_bytes - len(data))
        if not part:
            raise ConnectionResetError("the other side has hung up")
        data += part
    return data


def wait_for(is_so: Any, within_s: float = 30.0) -> None:
    never = threading.Event()
    for _ in range(int(within_s / 0.005)):
        if is_so():
            return
        never.wait(0.005)
    raise AssertionError("it did not happen in time")
