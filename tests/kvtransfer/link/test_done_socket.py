"""DONE by a datagram: who may send one, and what happens where it cannot be sent."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from twolane.kvtransfer import reasons
from twolane.kvtransfer.link.done_socket import KEY_BYTES, MAX_BYTES, DoneSocket, done_sender
from twolane.v1 import transfer_pb2

EPOCH, OTHER = 11, 12
DONE = transfer_pb2.Done(
    ticket=transfer_pb2.Ticket(key=transfer_pb2.TransferKey(submission_id="r"), generation=3),
    n_chunks=1,
    first_token=42,
)
LONG = transfer_pb2.Done(top_ids=range(1 << 14, 1 << 15))


class Heard:
    """A socket that is open, and what came to it."""

    def __init__(self) -> None:
        self.socket = DoneSocket()
        self.done: list[tuple[int, transfer_pb2.Done]] = []

    def on_done(self, epoch: int, message: transfer_pb2.ConnectRequest) -> None:
        self.done.append((epoch, message.done))

    def hello(self, epoch: int = EPOCH) -> transfer_pb2.ReceiverHello:
        key = self.socket.key_for(epoch)
        return transfer_pb2.ReceiverHello(done_address=self.socket.address, done_key=key)


@pytest.fixture
async def heard() -> AsyncIterator[Heard]:
    heard = Heard()
    with heard.socket.listening(heard.on_done):
        yield heard


@contextmanager
def raw(heard: Heard) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.connect(f"\0{heard.socket.address}")
        yield end


async def turns() -> None:
    """The event loop looks at its sockets."""
    for _ in range(8):
        await asyncio.sleep(0)


async def test_each_sender_is_known_by_the_key_of_its_link(heard: Heard) -> None:
    with done_sender(heard.hello(EPOCH)) as tell, done_sender(heard.hello(OTHER)) as tell_other:
        assert tell is not None
        assert tell_other is not None
        assert tell(DONE)
        assert tell_other(DONE)
        assert tell(DONE)
        await turns()
    assert heard.done == [(EPOCH, DONE), (OTHER, DONE), (EPOCH, DONE)]
    assert not heard.socket.dropped


async def test_a_key_is_worth_nothing_once_its_link_is_over(heard: Heard) -> None:
    hello = heard.hello()
    with done_sender(hello) as tell:
        assert tell is not None
        heard.socket.forget(hello.done_key)
        heard.socket.forget(b"never was one")
        assert tell(DONE)
        await turns()
    assert not heard.done
    assert heard.socket.dropped == {reasons.UNPROVEN: 1}


async def test_who_has_no_key_is_not_heard(heard: Heard) -> None:
    heard.hello()
    request = transfer_pb2.ConnectRequest(done=DONE).SerializeToString()
    with raw(heard) as end:
        for datagram in (b"", request, bytes(KEY_BYTES) + request):
            end.send(datagram)
            await turns()
    assert not heard.done
    assert heard.socket.dropped == {reasons.UNPROVEN: 3}


async def test_what_is_no_done_is_dropped_even_from_a_sender(heard: Heard) -> None:
    key = heard.hello().done_key
    abandon = transfer_pb2.ConnectRequest(abandon=transfer_pb2.Abandon(reason="cancelled"))
    done = transfer_pb2.ConnectRequest(done=DONE).SerializeToString()
    cut = transfer_pb2.ConnectRequest(done=LONG).SerializeToString()[:-1]
    with raw(heard) as end:
        for body in (b"", done + b"\xff\xff", abandon.SerializeToString(), cut):
            end.send(key + body)
            await turns()
    assert not heard.done
    assert heard.socket.dropped == {reasons.MALFORMED: 4}


async def test_a_done_that_is_too_long_goes_another_way(heard: Heard) -> None:
    assert LONG.ByteSize() < MAX_BYTES - KEY_BYTES - 16
    longer = transfer_pb2.Done(top_ids=range(1 << 14, 1 << 16))
    assert longer.ByteSize() > MAX_BYTES
    with done_sender(heard.hello()) as tell:
        assert tell is not None
        assert tell(LONG)
        assert not tell(longer)
        await turns()
    assert heard.done == [(EPOCH, LONG)]


async def test_a_full_queue_keeps_nobody_waiting(heard: Heard) -> None:
    with done_sender(heard.hello()) as tell:
        assert tell is not None
        n_sent = 0
        while tell(DONE):
            n_sent += 1
            assert n_sent < 100_000, "the queue has a bound"
        while len(heard.done) < n_sent:  # more than one turn of the loop reads
            await turns()
        assert tell(DONE)


async def test_a_receiver_that_has_ended_takes_nothing() -> None:
    heard = Heard()
    with heard.socket.listening(heard.on_done):
        ends = done_sender(heard.hello())
        tell = ends.__enter__()
    assert tell is not None
    assert not tell(DONE)
    ends.__exit__(None, None, None)
    assert not tell(DONE)


async def test_a_host_that_forbids_the_socket_keeps_no_worker_from_its_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError("by a policy")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    heard = Heard()
    with caplog.at_level(logging.WARNING), heard.socket.listening(heard.on_done):
        assert not heard.hello().done_address
    assert "by a policy" in caplog.text


async def test_no_socket_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with done_sender(transfer_pb2.ReceiverHello()) as tell:
        assert tell is None
    assert not caplog.records
    hello = transfer_pb2.ReceiverHello(worker_id="decode-7", done_address="twolane-nobody")
    with caplog.at_level(logging.WARNING), done_sender(hello) as tell:
        assert tell is None
    assert "decode-7" in caplog.text


async def test_a_process_without_a_free_descriptor_sends_done_by_its_links(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    heard = Heard()
    hello = transfer_pb2.ReceiverHello(worker_id="decode-7", done_address="twolane-somebody")
    monkeypatch.setattr(socket, "socket", refuse)
    with heard.socket.listening(heard.on_done), done_sender(hello) as tell:
        assert tell is None
        assert not heard.socket.address
    assert caplog.text.count("Too many open files") == 2
