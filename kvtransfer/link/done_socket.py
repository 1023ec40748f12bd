"""DONE by a datagram, from one process of a host to another.

    receiver    its hello: a name in the abstract namespace, and a key for this link
    sender      the key, ConnectRequest{done}   ──▶   as if it had come over the link

A row joins a batch when its DONE has come, and gRPC takes most of a millisecond to wake a process
where nothing happened before. Nothing depends on datagrams: where one cannot be sent, DONE goes
over the link, and the link repeats it until it is answered. They overtake the link's messages,
which a receiver takes in any order.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from google.protobuf.message import DecodeError

from twolane.kvtransfer import reasons
from twolane.v1 import transfer_pb2

KEY_BYTES = 16
MAX_BYTES = 64 * 1024  # of a datagram; a longer DONE goes over the link
OnDone = Callable[[int, transfer_pb2.ConnectRequest], None]  # with the sender's epoch
TrySendDone = Callable[[transfer_pb2.Done], bool]  # False: it was not sent

_log = logging.getLogger(__name__)


class DoneSocket:
    """The receiver's end, for all senders of its host; open within `listening`.

    `address` is empty while it is not open. `dropped` counts datagrams by reason: any process of
    the network namespace can send some.
    """

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self.address = ""
        self._epochs: dict[bytes, int] = {}  # of senders, by key

    def key_for(self, sender_epoch: int) -> bytes:
        """A new key: datagrams with it are that sender's until `forget`."""
        key = secrets.token_bytes(KEY_BYTES)
        self._epochs[key] = sender_epoch
        return key

    def forget(self, key: bytes) -> None:
        """Its link is over. Ignored for keys that are unknown."""
        self._epochs.pop(key, None)

    @contextmanager
    def listening(self, on_done: OnDone) -> Iterator[None]:
        """Calls `on_done` on the running loop for each DONE. Where there can be no such socket, it
        logs that, and none comes."""
        loop = asyncio.get_running_loop()
        address = f"twolane-done-{os.getpid()}-{secrets.token_hex(8)}"
        with ExitStack() as stack:
            try:
                end = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
                end.setblocking(False)
                end.bind(f"\0{address}")
            except OSError as error:
                _log.warning("DONE comes by links alone: %s", error)
                yield
                return
            self.address = address
            loop.add_reader(end, self._read, end, on_done)
            try:
                yield
            finally:
                loop.remove_reader(end)
                self.address = ""

    def _read(self, end: socket.socket, on_done: OnDone) -> None:
        """One datagram: the loop calls again for the next, after what else it has to do."""
        try:
            datagram = end.recv(MAX_BYTES)
        except BlockingIOError:
            return
        epoch = self._epochs.get(datagram[:KEY_BYTES])
        if epoch is None:  # guard: key of a link
            self.dropped[reasons.UNPROVEN] += 1
            return
        message = transfer_pb2.ConnectRequest()
        try:
            message.ParseFromString(datagram[KEY_BYTES:])
        except DecodeError:
            message.Clear()  # it holds what came before the fault
        if message.WhichOneof("message") == "done":
            on_done(epoch, message)
        else:
            self.dropped[reasons.MALFORMED] += 1


@contextmanager
def done_sender(hello: transfer_pb2.ReceiverHello) -> Iterator[TrySendDone | None]:
    """The sender's end, of one link: sends a DONE to the socket that the hello names. False: it is
    too long, the socket's queue is full, or the receiver has ended.

    None if the hello names no socket, there is none of that name, or none can be opened here.
    """
    if not hello.done_address:
        yield None
        return
    with ExitStack() as stack:
        try:
            end = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            end.setblocking(False)
            end.connect(f"\0{hello.done_address}")
        except OSError as error:
            _log.warning("DONE goes to %s by its link: %s", hello.worker_id, error)
            yield None
            return

        def try_send_done(done: transfer_pb2.Done) -> bool:
            request = transfer_pb2.ConnectRequest(done=done)
            datagram = hello.done_key + request.SerializeToString()
            if len(datagram) > MAX_BYTES:
                return False
            try:
                end.send(datagram)
            except OSError:
                return False
            return True

        yield try_send_done
