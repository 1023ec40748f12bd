"""Whether a TCP connection gets nothing through.

TCP doubles its pause each time that a packet gets lost again: over a bad link a connection may be
mute for half a minute, where a new one would go through at once.
"""

from __future__ import annotations

import socket
import struct

_RETRANSMITS = 2  # in the kernel's struct tcp_info: a byte
_MOST = 3  # as many times a packet was sent again, and not one answered: 1.4 s on a short way


def is_mute(stream: socket.socket) -> bool:
    """The other host's TCP has not answered to what was sent again and again. One whose process
    reads slowly, or not at all, answers. False for a socket that is no TCP."""
    if stream.family == socket.AF_UNIX or not hasattr(socket, "TCP_INFO"):
        return False
    return stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[_RETRANSMITS] >= _MOST


def drop(stream: socket.socket) -> None:
    """Close it, and what it still has to send with it."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()
