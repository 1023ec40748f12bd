"""Who may come in to a landing, and who has to leave again. Used by its thread alone.

    listener --- accept ---> stranger --- hello ---> sender, stays until it hangs up
                                |
                                `--- no hello in time, or room is needed ---> out

Anybody can connect to a tcp port. So a stranger does not stay, the house has a limit, and running
out of file descriptors makes us wait instead of asking again and again.
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
    """What strangers are allowed."""

    hello_within_s: float = HELLO_WITHIN_S
    most_connections: int = MOST_CONNECTIONS  # senders and strangers
    shortage_pause_s: float = 0.2  # nobody is let in for so long when the system is short

    def __post_init__(self) -> None:
        assert self.hello_within_s > 0
        assert self.most_connections >= 1
        assert self.shortage_pause_s > 0


class Connection(Protocol):
    """One connection."""

    stream: socket.socket

    @property
    def is_known(self) -> bool:
        """It said hello, and means us."""
        ...

    def leave(self) -> None:
        """The connection is over: closes it."""
        ...


ConnectionT = TypeVar("ConnectionT", bound=Connection)


class Listener(Generic[ConnectionT]):
    """The connections of one landing, in its selector with themselves as data."""

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
        self._unknown: dict[ConnectionT, float] = {}  # until when; oldest first; some said hello
        self._shut_until: float | None = None  # the listener is not looked at
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self)

    def accept(self, now: float) -> None:
        """Somebody knocks."""
        try:
            stream, _ = self._listener.accept()
        except OSError as error:
            self._dropped["accept"] += 1  # it hung up before we looked, or:
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
        """Strangers whose time is up leave. Returns how long nothing happens by time alone."""
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
        """The oldest stranger goes, if there is one: senders say hello at once."""
        oldest = next((one for one in self._unknown if not one.is_known), None)
        if oldest is None:
            return False
        self._dropped["hello"] += 1
        self.drop(oldest)
        return True
