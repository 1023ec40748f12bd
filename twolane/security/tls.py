"""TLS for gRPC and for asyncio: the files of a process, read again whenever they change.

    server_credentials(files)    a gRPC server; looks at the files at each handshake
    channel_credentials(files)   a gRPC channel; looks at the files when it is made
    server_context(files)        an asyncio server; looks at the files at each handshake
    client_context(files)        a socket or HTTP client; reads the files once

Files that cannot be used are refused at the start (`TlsFilesError`). If they become so later, the
certificate that is loaded stays in use and the log says why: a rotation replaces two files one
after the other, and between the two they do not belong together.

Only the standard library and gRPC are needed here; `twolane.security.certs` makes certificates.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import grpc

from twolane.rpc.log_rate import LogRate
from twolane.security import nobody
from twolane.security.identity import Role

log = logging.getLogger(__name__)

_TRIES, _PAUSE_S = 10, 0.01  # a renewal takes less
Stamp = tuple[tuple[int, int, int], ...]
NAME = "{name}"  # in a path: the name of the process, decode-0 or router-0
_SPIFFE = "spiffe://"


class TlsFilesError(Exception):
    """Names the file and what is wrong with it."""


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


def server_name(role: Role) -> str:
    """The DNS name that is in each certificate of that role (`router.twolane`). Inside a cluster a
    server is verified by its role: addresses change, and are known from members that proved
    theirs."""
    return f"{role.value}.twolane"


def check_files(files: TlsFiles) -> None:
    """Raises `TlsFilesError` unless all can be read, and the key is the certificate's."""
    _read(files)


def server_credentials(
    files: TlsFiles, *, certificate: ssl.VerifyMode = ssl.CERT_REQUIRED
) -> grpc.ServerCredentials:
    """For one `add_secure_port`: gRPC asks each server for changes. `certificate`: whether callers
    must show one, may, or are not asked. gRPC ends every handshake without one that it asks for, so
    where they may, those who have none show `nobody`'s. Raises `TlsFilesError`."""
    watched = _Watched(files)
    others = b"\n" + nobody.CERT if certificate is ssl.CERT_OPTIONAL else b""

    def configuration() -> Any:
        return grpc.ssl_server_certificate_configuration(
            [(watched.pem.key, watched.pem.cert)], watched.pem.ca + others
        )

    def fetch() -> Any:
        """None: as before. On a thread of gRPC's; an exception would fail the handshake."""
        return configuration() if watched.try_refresh() else None

    return grpc.dynamic_ssl_server_credentials(
        configuration(), fetch, require_client_authentication=certificate is not ssl.CERT_NONE
    )


def channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """For `secure_channel`. Raises `TlsFilesError`."""
    watched = _watched(files)
    watched.try_refresh()
    pem = watched.pem
    return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)


def server_context(
    files: TlsFiles, *, certificate: ssl.VerifyMode, listener: str = "the server"
) -> ssl.SSLContext:
    """For `asyncio.start_server(ssl=…)`. `certificate`: whether callers must show one, may, or are
    not asked. The log says now and then why handshakes at the `listener` fail: asyncio does not.
    Raises `TlsFilesError`."""
    watched = _Watched(files)
    current = context = _server_context(watched.files, certificate)
    context.sslobject_class = _logged(listener)

    def choose(connection: ssl.SSLObject, name: str | None, of: ssl.SSLContext) -> None:
        """OpenSSL asks at each handshake, whether or not the caller names a server."""
        nonlocal current
        if watched.try_refresh():
            current = _server_context(watched.files, certificate)
        connection.context = current

    context.sni_callback = choose
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Raises `TlsFilesError`. Name the server as `server_name(role)`."""
    _read(files)
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(files.ca))
    context.load_cert_chain(files.cert, files.key)
    return context


def spiffe_uri(certificate: Mapping[str, Any] | None) -> str | None:
    """The identity in a certificate as `ssl` decodes it (`SSLObject.getpeercert()`); None if it has
    none, or more than one."""
    names = (certificate or {}).get("subjectAltName", ())
    uris = [value for kind, value in names if kind == "URI" and value.startswith(_SPIFFE)]
    return uris[0] if len(uris) == 1 else None


def _logged(listener: str) -> type[ssl.SSLObject]:
    """Of the server's end of a connection: one that logs why its handshake fails."""
    rate = LogRate()

    class Logged(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                n = rate.take(_why(error), time.monotonic())
                if n:
                    log.warning("%s: %d TLS handshakes failed: %s", listener, n, _why(error))
                raise

    return Logged


@dataclass(frozen=True, slots=True)
class _Pem:
    ca: bytes
    cert: bytes
    key: bytes


class _Watched:
    """Files, and what they held when they last belonged together. May be used on any thread: two
    that refresh at once read the same files."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self.pem = _read_patiently(files)
        self._stamp: Stamp | None = None  # of what `pem` is; None: look again
        self._log_rate = LogRate()

    def try_refresh(self) -> bool:
        """True: they have changed and `pem` is what they hold now."""
        try:
            stamp = _stamp(self.files)
            if stamp == self._stamp:
                return False
            is_first, before = self._stamp is None, self.pem
            self.pem = _read(self.files)
            self._stamp = stamp
            if is_first and self.pem == before:
                return False
        except (OSError, TlsFilesError) as error:
            if self._log_rate.take("files", time.monotonic()):
                log.warning("the certificate in use stays: %s", error)
            return False
        log.info("the certificate %s has changed and is in use", self.files.cert)
        return True


@cache
def _watched(files: TlsFiles) -> _Watched:
    """Shared by all channels with these files."""
    return _Watched(files)


def _stamp(files: TlsFiles) -> Stamp:
    """Changes when one of the files is written or replaced. Raises OSError."""
    facts = (path.stat() for path in (files.ca, files.cert, files.key))
    return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in facts)


def _read_patiently(files: TlsFiles) -> _Pem:
    """As `_read`, but a renewal that is just replacing the files is waited for."""
    for _ in range(_TRIES):
        try:
            return _read(files)
        except TlsFilesError:
            time.sleep(_PAUSE_S)
    return _read(files)


def _read(files: TlsFiles) -> _Pem:
    """Raises `TlsFilesError` unless all can be read, and the key is the certificate's."""
    pem = _bytes_of(files)
    _server_context(files, ssl.CERT_NONE)
    if _bytes_of(files) != pem:
        raise TlsFilesError(f"{files.cert} and {files.key} are just being replaced")
    return pem


def _bytes_of(files: TlsFiles) -> _Pem:
    found: list[bytes] = []
    for option, path in (("ca", files.ca), ("cert", files.cert), ("key", files.key)):
        try:
            found.append(path.read_bytes())
        except OSError as error:
            text = f"tls_{option}: {path} cannot be read: {error.strerror}"
            raise TlsFilesError(text) from error
    return _Pem(*found)


def _server_context(files: TlsFiles, certificate: ssl.VerifyMode) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = certificate
    try:
        context.load_cert_chain(files.cert, files.key)
    except (OSError, ValueError) as error:
        text = f"tls_cert and tls_key: {files.cert} and {files.key} are no certificate and its key"
        raise TlsFilesError(f"{text}: {_reason(error)}") from error
    try:
        context.load_verify_locations(files.ca)
    except (OSError, ValueError) as error:
        text = f"tls_ca: {files.ca} holds no certificate: {_reason(error)}"
        raise TlsFilesError(text) from error
    return context


def _why(error: ssl.SSLError) -> str:
    """certificate has expired; http request"""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return _reason(error)


def _reason(error: Exception) -> str:
    """KEY_VALUES_MISMATCH, in words: key values mismatch."""
    reason = getattr(error, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else str(error)
