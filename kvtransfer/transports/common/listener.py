"""Accepts the connections of a landing and bounds them. Used by the landing's thread only.

    accept ---> unknown --- hello (and proof of the key) ---> known: stays until the sender hangs up
                   |
                   `--- neither in time, or its place is needed ---> closed

Anybody can connect to a tcp port. So an unknown connection is closed after a while, the number of
connections is bounded, and when the process runs out of file descriptors, accepting pauses.
"""

from __future__ import annotations

import errno
import selectors
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from twolane.kvtransfer.transports.common.addresses import is_same_user, widen

HELLO_WITHIN_S = 5.0  # a lost packet of a handshake is sent again after 1 s, then after 3
MOST_CONNECTIONS = 1024
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """Bounds of a landing's connections."""

    hello_within_s: float = HELLO_WITHIN_S
    most_connections: int = MOST_CONNECTIONS  # known and unknown
    shortage_pause_s: float = 0.2  # no accept for so long when the system is short of descriptors

    def __post_init__(self) -> None:
        assert self.hello_within_s > 0
        assert self.most_connections >= 1
        assert self.shortage_pause_s > 0


class Connection(Protocol):
    """One connection."""

    stream: socket.socket

    @property
    def is_known(self) -> bool:
        """Its hello was for this receiver, and it proved the key where one is needed."""
        ...

    def leave(self) -> None:
        """Closes the connection."""
        ...


ConnectionT = TypeVar("ConnectionT", bound=Connection)


class Listener(Generic[ConnectionT]):
    """The connections of one landing, registered in its selector with themselves as data."""

    def __init__(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        meet: Callable[[socket.socket], ConnectionT],
        dropped: Counter[str],
        config: ListenerConfig,
    ) -> None:
        self.connections: set[ConnectionT] = set()
        self._listener = listener
        self._selector = selector
        self._meet = meet
        self._dropped = dropped
        self._config = config
        self._unknown: dict[ConnectionT, float] = {}  # when to close them; oldest first
        self._shut_until: float | None = None  # accepting pauses
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self)

    def accept(self, now: float) -> None:
        """The listening socket is readable."""
        try:
            stream, _ = self._listener.accept()
        except OSError as error:
            self._dropped["accept"] += 1  # the peer hung up before we accepted, or:
            if error.errno in _SHORTAGES:
                self._selector.unregister(self._listener)
                self._shut_until = now + self._config.shortage_pause_s
            return
        if not is_same_user(stream):
            self._dropped["user"] += 1
            stream.close()
            return
        if len(self.connections) >= self._config.most_connections and not self._make_room():
            self._dropped["full"] += 1
            stream.close()
            return
        stream.setblocking(False)
        widen(stream)
        connection = self._meet(stream)
        self.connections.add(connection)
        self._unknown[connection] = now + self._config.hello_within_s
        self._selector.register(stream, selectors.EVENT_READ, connection)

    def drop(self, connection: ConnectionT) -> None:
        self.connections.remove(connection)
        self._unknown.pop(connection, None)
        self._selector.unregister(connection.stream)
        connection.leave()

    def tick(self, now: float) -> float | None:
        """Closes unknown connections whose time is up. Returns the seconds until the next timeout,
        None if there is none."""
        if self._shut_until is not None and now >= self._shut_until:
            self._shut_until = None
            self._selector.register(self._listener, selectors.EVENT_READ, self)
        for connection, until in list(self._unknown.items()):
            if connection.is_known:
                del self._unknown[connection]
            elif now >= until:
                self._dropped["hello"] += 1
                self.drop(connection)
        moments = list(self._unknown.values())[:1]
        if self._shut_until is not None:
            moments.append(self._shut_until)
        return min(moments) - now if moments else None

    def close(self) -> None:
        for connection in list(self.connections):
            self.drop(connection)
        self._listener.close()

    def _make_room(self) -> bool:
        """Closes the oldest unknown connection, if there is one: senders say hello at once."""
        oldest = next((one for one in self._unknown if not one.is_known), None)
        if oldest is None:
            return False
        self._dropped["hello"] += 1
        self.drop(oldest)
        return True
