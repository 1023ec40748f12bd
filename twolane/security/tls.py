"""TLS for gRPC and for asyncio: the certificate files of a process, reread when they change.

    server_credentials(files)    a gRPC server; checks the files at each handshake
    channel_credentials(files)   a gRPC channel; reads the files when it is made
    server_context(files)        an asyncio server; checks the files at each handshake
    client_context(files)        a socket or HTTP client; reads the files once

Files that cannot be used are refused at the start (`TlsFilesError`). If they become unusable later,
the loaded certificate stays in use and the reason is logged: a rotation replaces certificate and
key one after the other, and in between they do not match.

This module needs only the standard library and gRPC; `twolane.security.certs` makes certificates.
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

_TRIES, _PAUSE_S = 10, 0.01  # longer than a renewal takes
Stamp = tuple[tuple[int, int, int], ...]
NAME = "{name}"  # in a path: the name of the process, decode-0 or router-0
_SPIFFE = "spiffe://"


class TlsFilesError(Exception):
    """A TLS file cannot be used. The text names the file and what is wrong with it."""


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
    """The DNS name in each certificate of that role (`router.twolane`). Inside a cluster a server
    is verified by its role, not by its address: addresses change, and come from members that were
    authenticated."""
    return f"{role.value}.twolane"


def check_files(files: TlsFiles) -> None:
    """Raise `TlsFilesError` unless all files can be read and the key matches the certificate."""
    _read(files)


def server_credentials(
    files: TlsFiles, *, certificate: ssl.VerifyMode = ssl.CERT_REQUIRED
) -> grpc.ServerCredentials:
    """Credentials for one `add_secure_port`: gRPC polls each server's credentials for changes.
    `certificate` says whether callers must present a certificate, may, or are not asked for one. If
    gRPC asks for a certificate, it fails every handshake without one; so where certificates are
    optional, callers without their own present `nobody`'s. Raises `TlsFilesError`."""
    watched = _Watched(files)
    others = b"\n" + nobody.CERT if certificate is ssl.CERT_OPTIONAL else b""

    def configuration() -> Any:
        return grpc.ssl_server_certificate_configuration(
            [(watched.pem.key, watched.pem.cert)], watched.pem.ca + others
        )

    def fetch() -> Any:
        """The new configuration; None if nothing has changed. Runs on a gRPC thread; an exception
        would fail the handshake."""
        return configuration() if watched.try_refresh() else None

    return grpc.dynamic_ssl_server_credentials(
        configuration(), fetch, require_client_authentication=certificate is not ssl.CERT_NONE
    )


def channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """Credentials for `secure_channel`. Raises `TlsFilesError`."""
    watched = _watched(files)
    watched.try_refresh()
    pem = watched.pem
    return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)


def server_context(
    files: TlsFiles, *, certificate: ssl.VerifyMode, listener: str = "the server"
) -> ssl.SSLContext:
    """The context for `asyncio.start_server(ssl=…)`. `certificate` says whether callers must
    present a certificate, may, or are not asked for one. Failed handshakes at the `listener` are
    logged at a limited rate, because asyncio does not log them. Raises `TlsFilesError`."""
    watched = _Watched(files)
    current = context = _server_context(watched.files, certificate)
    context.sslobject_class = _logged(listener)

    def choose(connection: ssl.SSLObject, name: str | None, of: ssl.SSLContext) -> None:
        """OpenSSL calls this at each handshake, even if the caller names no server."""
        nonlocal current
        if watched.try_refresh():
            current = _server_context(watched.files, certificate)
        connection.context = current

    context.sni_callback = choose
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """The context of a socket or HTTP client, which must use `server_name(role)` as the server's
    name. Raises `TlsFilesError`."""
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
    """An `SSLObject` class for the server's end of a connection, which logs why a handshake
    fails."""
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
    """TLS files, and their contents when they last matched. May be used on any thread: two threads
    that refresh at once read the same files."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self.pem = _read_patiently(files)
        self._stamp: Stamp | None = None  # of the files read into `pem`; None: check again
        self._log_rate = LogRate()

    def try_refresh(self) -> bool:
        """Reread the files if they have changed. True if `pem` now has new contents."""
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
                log.warning("the certificate was not replaced, the old one stays in use: %s", error)
            return False
        log.info("the certificate %s has changed and is in use", self.files.cert)
        return True


@cache
def _watched(files: TlsFiles) -> _Watched:
    """The one `_Watched` that all channels with these files share."""
    return _Watched(files)


def _stamp(files: TlsFiles) -> Stamp:
    """A value that changes when one of the files is written or replaced. Raises OSError."""
    facts = (path.stat() for path in (files.ca, files.cert, files.key))
    return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in facts)


def _read_patiently(files: TlsFiles) -> _Pem:
    """As `_read`, but wait for a renewal that is replacing the files."""
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
        raise TlsFilesError(f"{files.cert} and {files.key} are being replaced")
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
        text = f"tls_cert and tls_key: {files.cert} and {files.key} do not match or are invalid"
        raise TlsFilesError(f"{text}: {_reason(error)}") from error
    try:
        context.load_verify_locations(files.ca)
    except (OSError, ValueError) as error:
        text = f"tls_ca: {files.ca} holds no certificate: {_reason(error)}"
        raise TlsFilesError(text) from error
    return context


def _why(error: ssl.SSLError) -> str:
    """A reason such as `certificate has expired` or `http request`."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return _reason(error)


def _reason(error: Exception) -> str:
    """The reason in words: `key values mismatch` for KEY_VALUES_MISMATCH."""
    reason = getattr(error, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else str(error)
