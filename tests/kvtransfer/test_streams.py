"""tcp and unix ends alone: whatever comes over the socket, only granted pages are written."""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

from twolane.kvtransfer import reasons
from twolane.kvtransfer.copy_plan import CopyPlan
from twolane.kvtransfer.layouts.sources import WholePages
from twolane.kvtransfer.transport import Checked, Stopped
from twolane.kvtransfer.transports.common.addresses import listen_tcp, listen_unix, socket_to
from twolane.kvtransfer.transports.common.claims import LandingTable
from twolane.kvtransfer.transports.common.frames import HEAD_BYTES, Hello, Pages
from twolane.kvtransfer.transports.common.listener import ListenerConfig
from twolane.kvtransfer.transports.common.shared_memory import create_pool_memory
from twolane.kvtransfer.transports.mapped.shm_landing import ShmLanding
from twolane.kvtransfer.transports.mapped.shm_outlet import ShmOutlet
from twolane.kvtransfer.transports.stream import outlet as stream_outlet
from twolane.kvtransfer.transports.stream.landing import StreamLanding
from twolane.kvtransfer.transports.stream.outlet import StreamOutlet
from twolane.kvtransfer.transports.stream.sink import HostDestination
from twolane.kvtransfer.transports.stream.source import HostSource

SIZE = 4096
HELLO = Hello(1, 2, SIZE).pack()


def destination(pool: Any) -> HostDestination:
    return HostDestination(pool, LandingTable(checksums=True), checksums=True)


def outlet_of(kind: str, address: str, pool: Any) -> StreamOutlet:
    return StreamOutlet(kind, address, 1, 2, HostSource(WholePages(pool), "xxh3"), digest="xxh3")


class Ear:
    """Waits for news of one end."""

    def __init__(self, end: Any) -> None:
        self.end = end
        self.news: list[Any] = []
        self._woken = threading.Event()
        end.set_wake(self._woken.set)

    def wait_for(self, n: int) -> list[Any]:
        while len(self.news) < n:
            assert self._woken.wait(30.0), f"only {self.news}"
            self._woken.clear()
            self.news += self.end.poll()
        return self.news


@pytest.fixture(params=["tcp", "unix"])
def landing(request: pytest.FixtureRequest) -> Iterator[tuple[str, StreamLanding, Any]]:
    pool = np.zeros((16, SIZE), dtype=np.uint8)
    listener, address = listen_unix() if request.param == "unix" else listen_tcp("127.0.0.1", "")
    landing = StreamLanding(listener, address, 2, destination(pool))
    yield request.param, landing, pool
    landing.close()
    landing.close()


def connect(kind: str, landing: StreamLanding) -> socket.socket:
    stream, target = socket_to(kind, landing.address)
    stream.setblocking(True)
    stream.settimeout(30.0)
    stream.connect(target)  # type: ignore[arg-type]
    return stream


def is_hung_up(stream: socket.socket) -> bool:
    try:
        return stream.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\nHost: decode-worker\r\n\r\n",
        b"T2KV" + bytes(28),
        HELLO[:4] + b"\x02" + HELLO[5:],
        Hello(0, 2, SIZE).pack(),
        Hello(1, 3, SIZE).pack(),
        Hello(1, 2, SIZE + 1).pack(),
        Pages(1, SIZE, 0, 1).pack(),
        HELLO + HELLO,
        HELLO + Pages(1, SIZE - 1, 0, 1).pack(),
        HELLO + Pages(1, 1 << 40, 0, 1).pack(),
        HELLO + Pages(1, SIZE, 0, 0).pack(),
    ],
)
def test_malformed_frame_closes_its_connection_and_no_other(landing: Any, junk: bytes) -> None:
    kind, there, pool = landing
    ear = Ear(there)
    there.grant(1, 1, np.array([7], dtype=np.int64))
    with connect(kind, there) as good, connect(kind, there) as bad:
        good.sendall(HELLO)
        bad.sendall(junk)
        assert is_hung_up(bad)
        assert there.dropped[reasons.MALFORMED] == 1
        assert not pool.any()
        good.sendall(Pages(1, SIZE, 0, 1).pack() + b"\x05" * SIZE)
        there.check(1, 0, 1)
        assert isinstance(ear.wait_for(1)[0], Checked)
        assert (pool[7] == 5).all()


def test_bytes_of_a_revoked_generation_go_to_the_scrap_even_in_mid_page(landing: Any) -> None:
    kind, there, pool = landing
    ear = Ear(there)
    there.grant(1, 1, np.array([3, 4], dtype=np.int64))
    there.grant(1, 2, np.array([5], dtype=np.int64))
    with connect(kind, there) as stream:
        stream.sendall(HELLO + Pages(1, 2 * SIZE, 0, 2).pack() + b"\x01" * (SIZE + 10))
        there.check(1, 0, 1)
        while not pool[4].any():
            pass
        there.revoke(1)
        assert ear.wait_for(1) == [Stopped(1)]
        pool[:] = 0  # the pages are somebody else's now
        stream.sendall(b"\x01" * (SIZE - 10))
        stream.sendall(Pages(1, SIZE, 0, 1).pack() + b"\x02" * SIZE)
        stream.sendall(Pages(2, SIZE, 0, 1).pack() + b"\x09" * SIZE)
        there.check(2, 0, 1)
        ear.wait_for(2)
    assert (pool[5] == 9).all()
    assert not pool[3].any()
    assert not pool[4].any()
    assert there.dropped == {reasons.GENERATION: 1}


def test_every_byte_may_come_alone(landing: Any) -> None:
    kind, there, pool = landing
    ear = Ear(there)
    there.grant(1, 1, np.array([2], dtype=np.int64))
    content = np.random.default_rng(0).integers(0, 256, SIZE, dtype=np.uint8)
    with connect(kind, there) as stream:
        for byte in HELLO + Pages(1, SIZE, 0, 1).pack():
            stream.sendall(bytes([byte]))
        stream.sendall(content[:1].tobytes())
        stream.sendall(content[1:].tobytes())
        there.check(1, 0, 1)
        ear.wait_for(1)
    assert (pool[2] == content).all()


def ids(*numbers: int) -> Any:
    return np.array(numbers, dtype=np.int64)


def fill_until_stuck(peer: socket.socket) -> None:
    """Returns once nothing more arrives in the unread buffer of this end."""
    n_unread, n_before = 0, -1
    while n_unread == 0 or n_unread != n_before:
        time.sleep(0.1)
        n_before, n_unread = n_unread, unread_bytes(peer)


def unread_bytes(peer: socket.socket) -> int:
    n_bytes: int = struct.unpack("i", fcntl.ioctl(peer, termios.FIONREAD, bytes(4)))[0]
    return n_bytes


def test_receiver_that_does_not_read_keeps_no_page_of_a_cancelled_post() -> None:
    """Unix sockets hold at most 8 MiB whatever the machine: no post of 16 MiB gets through."""
    pool = np.ones((4096, SIZE), dtype=np.uint8)
    everything = CopyPlan(0, np.arange(4096, dtype=np.int64), np.arange(4096, dtype=np.int64))
    listener, address = listen_unix()
    with listener:
        outlet = StreamOutlet("unix", address, 1, 2, HostSource(WholePages(pool), ""), digest="")
        ear = Ear(outlet)
        for post in (1, 2, 3):
            outlet.post(post, 7, everything)
        outlet.post(4, 8, everything)
        peer, _ = listener.accept()  # and never reads
        with peer:
            fill_until_stuck(peer)
            assert not outlet.poll()
            outlet.cancel(7)
            posted = ear.wait_for(3)
            assert sorted(p.post for p in posted) == [1, 2, 3]
            assert not any(p.ok for p in posted)
            outlet.close()
            assert [(p.post, p.ok) for p in outlet.poll()] == [(4, False)]
            outlet.post(5, 8, CopyPlan(0, ids(0), ids(0)))
            assert [(p.post, p.ok) for p in outlet.poll()] == [(5, False)]


class ShortListener(socket.socket):
    """The process has no file descriptor left, until `is_short` is unset."""

    is_short = True
    n_asked = 0

    def accept(self) -> Any:
        self.n_asked += 1
        if self.is_short:
            raise OSError(errno.EMFILE, "too many open files")
        return super().accept()


@contextmanager
def landing_with(limits: ListenerConfig) -> Iterator[tuple[StreamLanding, ShortListener]]:
    plain, address = listen_tcp("127.0.0.1", "")
    listener = ShortListener(fileno=plain.detach())
    listener.is_short = False
    pool = np.zeros((16, SIZE), dtype=np.uint8)
    landing = StreamLanding(listener, address, 2, destination(pool), limits=limits)
    yield landing, listener
    landing.close()


def is_served(landing: StreamLanding, stream: socket.socket, generation: int) -> bool:
    """Bytes of that connection land."""
    ear = Ear(landing)
    landing.grant(1, generation, ids(7))
    stream.sendall(Pages(generation, SIZE, 0, 1).pack() + b"\x05" * SIZE)
    landing.check(generation, 0, 1)
    return isinstance(ear.wait_for(1)[0], Checked)


def test_connection_without_a_hello_is_closed_and_one_with_it_stays() -> None:
    with landing_with(ListenerConfig(hello_within_s=60.0)) as (there, _):
        with connect("tcp", there) as good:
            good.sendall(HELLO)
            assert is_served(there, good, 1)
            there._listener._config = ListenerConfig(hello_within_s=0.2)
            with connect("tcp", there) as silent:
                silent.sendall(HELLO[:-1])
                assert is_hung_up(silent)
            assert is_served(there, good, 2)
        assert there.dropped == {"hello": 1}


def test_full_landing_turns_out_its_oldest_stranger_and_no_sender() -> None:
    with landing_with(ListenerConfig(hello_within_s=60.0, most_connections=2)) as (there, _):
        with connect("tcp", there) as stranger, connect("tcp", there) as first:
            first.sendall(HELLO)
            assert is_served(there, first, 1)
            with connect("tcp", there) as second:
                assert is_hung_up(stranger)
                second.sendall(HELLO)
                assert is_served(there, second, 2)
                with connect("tcp", there) as third:
                    assert is_hung_up(third)
                assert is_served(there, first, 3)
        assert there.dropped == {"hello": 1, "full": 1}


def test_landing_without_file_descriptors_does_not_spin_and_recovers() -> None:
    with landing_with(ListenerConfig(shortage_pause_s=0.1)) as (there, listener):
        listener.is_short = True
        began_s = time.monotonic()
        with connect("tcp", there) as stream:
            while listener.n_asked < 4:
                time.sleep(0.01)
            assert time.monotonic() - began_s > 0.25, "three pauses"
            listener.is_short = False
            stream.sendall(HELLO)
            assert is_served(there, stream, 1)


class PendingSocket(socket.socket):
    """Connects until its peer has read what fills it: not writable, as any that still connects."""

    asked: threading.Event

    def connect_ex(self, address: Any, /) -> int:
        self.asked.set()
        return errno.EINPROGRESS


@contextmanager
def connecting(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[StreamOutlet, Ear, socket.socket]]:
    """An outlet that connects with a post of one page, and the end that lets it in by reading."""
    here, there = socket.socketpair()
    pending = PendingSocket(fileno=there.detach())
    pending.asked = threading.Event()
    pending.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            pending.send(bytes(4096))
    monkeypatch.setattr(stream_outlet, "socket_to", lambda kind, address: (pending, address))
    outlet = outlet_of("tcp", "", np.ones((4, SIZE), dtype=np.uint8))
    outlet.post(1, 9, CopyPlan(0, ids(0), ids(0)))
    assert pending.asked.wait(30.0)
    with here, pending:
        yield outlet, Ear(outlet), here
        outlet.close()


def test_orders_that_come_while_it_connects_fail_no_post(monkeypatch: pytest.MonkeyPatch) -> None:
    with connecting(monkeypatch) as (outlet, ear, here):
        outlet.post(2, 9, CopyPlan(1, ids(1), ids(1)))
        while outlet._mailbox._orders:
            time.sleep(0.001)
        assert not outlet.poll(), "still connecting"
        here.settimeout(30.0)
        read = b""
        while len(read.lstrip(b"\0")) < HEAD_BYTES + 2 * (HEAD_BYTES + SIZE):
            read += here.recv(1 << 20)
        assert [(p.post, p.ok) for p in ear.wait_for(2)] == [(1, True), (2, True)]


def test_post_that_is_cancelled_while_it_connects_waits_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with connecting(monkeypatch) as (outlet, ear, _):
        outlet.cancel(9)
        assert [(p.post, p.ok) for p in ear.wait_for(1)] == [(1, False)]


def test_post_to_nobody_fails_instead_of_waiting() -> None:
    with socket.socket() as deaf:  # has its port, so that nobody else listens there
        deaf.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        outlet = outlet_of("tcp", address, np.ones((4, SIZE), dtype=np.uint8))
        outlet.post(1, 1, CopyPlan(0, ids(0), ids(0)))
        assert [(p.post, p.ok) for p in Ear(outlet).wait_for(1)] == [(1, False)]
        outlet.close()


def test_broken_connection_fails_its_post_and_the_next_one_connects_again(landing: Any) -> None:
    kind, there, _ = landing
    source = np.full((16, SIZE), 3, dtype=np.uint8)
    outlet = outlet_of(kind, there.address, source)
    ear, news = Ear(outlet), Ear(there)
    there.grant(1, 1, ids(1, 2))
    outlet.post(1, 1, CopyPlan(0, ids(5), ids(1)))
    assert ear.wait_for(1)[0].ok
    assert outlet._stream is not None
    outlet._stream.shutdown(socket.SHUT_RDWR)
    outlet.post(2, 1, CopyPlan(1, ids(6), ids(2)))
    assert not ear.wait_for(2)[1].ok
    outlet.post(3, 1, CopyPlan(1, ids(6), ids(2)))
    assert ear.wait_for(3)[2].ok
    there.check(1, 0, 2)
    (checked,) = news.wait_for(1)
    assert checked.checksums.tolist() == [*ear.news[0].checksums, *ear.news[2].checksums]
    outlet.close()


def test_shm_outlet_writes_no_page_outside_of_the_receivers_pool() -> None:
    memory = create_pool_memory(4 * SIZE, "x")
    target = memory.array.reshape(4, SIZE)
    landing = ShmLanding(target, memory, checksums=True)
    source = np.full((4, SIZE), 6, dtype=np.uint8)
    outlet = ShmOutlet(landing.address, WholePages(source), digest="xxh3")
    ear, news = Ear(outlet), Ear(landing)
    outlet.post(1, 1, CopyPlan(0, ids(0), ids(4)))
    outlet.post(2, 1, CopyPlan(0, ids(0, 1), ids(3, 0)))
    posted = {p.post: p for p in ear.wait_for(2)}
    assert not posted[1].ok
    assert posted[2].ok
    assert target[:, 0].tolist() == [6, 0, 0, 6]
    landing.grant(1, 1, ids(3, 0))
    landing.check(1, 0, 2)
    assert news.wait_for(1)[0].checksums.tolist() == posted[2].checksums.tolist()
    outlet.close()
    landing.close()
    memory.close()


@pytest.mark.parametrize("address", ["x", "a..b:1"])
def test_post_to_what_is_no_address_fails_and_the_outlet_lives_on(address: str) -> None:
    outlet = outlet_of("tcp", address, np.ones((4, SIZE), dtype=np.uint8))
    ear = Ear(outlet)
    for post in (1, 2):
        outlet.post(post, 9, CopyPlan(0, ids(0), ids(0)))
        assert not ear.wait_for(post)[-1].ok
    outlet.close()
