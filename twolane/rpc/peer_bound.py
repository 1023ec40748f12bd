"""Bounds the connections of one peer at a port that gRPC listens at.

gRPC bounds connections in number alone and shows none of them before its first call. Its sockets
are this process's own, so they are counted from outside: a socket that is shut down is closed by
gRPC as if its client had gone.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections import Counter
from collections.abc import Callable

_HERE = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"


class PeerBound:
    """`enforce` is called time and again. A socket is looked at once, so that a call with thousands
    of them takes milliseconds. Not thread-safe."""

    def __init__(self, port: int, most: int, peer_of: Callable[[str], str]) -> None:
        """`most` connections of each peer, as `peer_of` makes it from an address; an empty one is
        not bounded."""
        self._port = port
        self._most = most
        self._peer_of = peer_of
        self._peers: dict[int, str] = {}  # of each socket by inode, oldest first

    def enforce(self) -> Counter[str]:
        """Close the newest connections of each peer that has too many; their number by peer. Does
        nothing while the process has no descriptor left to look with."""
        try:
            open_now = _sockets()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            return Counter()
        self._peers = {inode: peer for inode, peer in self._peers.items() if inode in open_now}
        for inode, fd in open_now.items():
            if inode not in self._peers:
                self._peers[inode] = self._look(fd)
        n_open, closed = Counter[str](), Counter[str]()
        for inode, peer in self._peers.items():
            n_open[peer] += 1
            if peer and n_open[peer] > self._most and _shut_down(open_now[inode], inode):
                closed[peer] += 1
        return closed

    def _look(self, fd: int) -> str:
        """The peer of a connection at the port; empty for any other socket."""
        try:
            theirs = socket.socket(fileno=fd)
        except OSError:
            return ""
        try:
            if theirs.family not in (socket.AF_INET, socket.AF_INET6):
                return ""
            if theirs.getsockname()[1] != self._port:
                return ""
            return self._peer_of(theirs.getpeername()[0])
        except OSError:  # a listener, or closed meanwhile
            return ""
        finally:
            theirs.detach()


def _sockets() -> dict[int, int]:
    """Descriptors of this process's sockets by inode. Raises `OSError`."""
    found = {}
    for name in os.listdir(_HERE):
        try:
            status = os.fstat(int(name))
        except OSError:
            continue  # closed meanwhile
        if stat.S_ISSOCK(status.st_mode):
            found[status.st_ino] = int(name)
    return found


def _shut_down(fd: int, inode: int) -> bool:
    """False for one that has been closed meanwhile."""
    try:
        if os.fstat(fd).st_ino != inode:
            return False
        theirs = socket.socket(fileno=fd)
    except OSError:
        return False
    try:
        theirs.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    finally:
        theirs.detach()
    return True
