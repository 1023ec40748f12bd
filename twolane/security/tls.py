"""TLS for gRPC and for asyncio: the files of a process, read again whenever they change.

    certificates of us and them          who reads it
    server_credentials(files)            a gRPC server, at each handshake
    channel_credentials(files)           a gRPC channel, when it is made
    server_context(files)                an asyncio server, at each handshake
    client_context(files)                a socket or HTTP client, when it is made

Only the standard library and gRPC are needed here; `twolane.security.certs` makes certificates.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

NAME = "{name}"  # in a path: the name of the process, decode-0 or router-0


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files: the authorities to trust, this process's certificate, and its key.

    Every process of a cluster has a certificate of its own, so a cluster's paths may contain
    `{name}`: `of(name)` gives the files of one process.
    """

    ca: Path
    cert: Path
    key: Path

    def of(self, name: str) -> TlsFiles:
        """The files of the process with that name."""
        paths = (self.ca, self.cert, self.key)
        return TlsFiles(*(Path(str(path).replace(NAME, name)) for path in paths))
