"""A store whose clock is off: between it and routers, the answers to TIME are changed."""

from __future__ import annotations

import re
import socket
import threading

_TIME = re.compile(rb"\*2\r\n\$10\r\n(\d{10})\r\n(?=\$\d\r\n\d+\r\n)")


class MovedClock:
    """Listens at `host`, and calls the server at `port` of the loopback."""

    def __init__(self, host: str, port: int) -> None:
        self.off_s = 0
        self._to = ("127.0.0.1", port)
        self._listener = socket.create_server((host, 0))
        self.url = f"redis://{host}:{self._listener.getsockname()[1]}/0"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection(self._to)
            except OSError:
                client.close()
                continue
            for ends in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._copy, args=ends, daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        try:
            while raw := source.recv(1 << 16):
                target.sendall(_TIME.sub(self._moved, raw) if is_answer else raw)
        except OSError:  # one of them has gone
            pass
        for end in (source, target):
            end.close()

    def _moved(self, found: re.Match[bytes]) -> bytes:
        return b"*2\r\n$10\r\n%d\r\n" % (int(found[1]) + self.off_s)
