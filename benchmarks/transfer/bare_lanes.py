"""Rates of loopback sockets with nothing around them: plain, TLS, and our own encrypted records.

    this process: a thread a socket, writing        child: one thread for all sockets, reading

Threads are as in the tcp transport: the sender has one for each socket, the landing one for all.
TLS is OpenSSL's through Python's ssl module, version 1.3, AES-256-GCM.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from twolane.kvtransfer.transports.stream.records import (
    EncryptedReader,
    EncryptedWriter,
    PlainReader,
    PlainWriter,
    Reader,
    Writer,
)

PLAIN, TLS, RECORDS = "plain", "tls", "records"
_KEY = bytes(range(32))
_PIECE_BYTES = 8 << 20  # of one call: a page of an 8B model
_READ_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class _TlsWriter:
    """`Writer` over a blocking TLS socket."""

    stream: ssl.SSLSocket
    is_behind = False

    def write(self, views: list[memoryview]) -> int:
        return self.stream.send(views[0])


@dataclass(frozen=True, slots=True)
class _TlsReader:
    """`Reader` over a TLS socket."""

    stream: ssl.SSLSocket

    @property
    def is_ahead(self) -> bool:
        return self.stream.pending() > 0

    def read_into(self, views: list[memoryview]) -> int:
        try:
            return self.stream.recv_into(views[0])
        except ssl.SSLWantReadError as error:
            raise BlockingIOError from error


class BareRate(NamedTuple):
    """The result of one round. The seconds are CPU time per gigabyte, which other programs on the
    same cores affect little."""

    bytes_per_s: float  # from the first write until the other process has read them all
    sender_cpu_s_per_gb: float
    receiver_cpu_s_per_gb: float


def bare_lane_rate(kind: str, n_sockets: int, total_bytes: int) -> BareRate:
    """Measure one round over new connections."""
    each = total_bytes // n_sockets // _PIECE_BYTES * _PIECE_BYTES
    assert each, "too few bytes for so many sockets"
    with TemporaryDirectory() as folder:
        files = _certificate(Path(folder)) if kind == TLS else None
        context = get_context("spawn")
        here, there = context.Pipe()
        args = (kind, n_sockets, each, files, there)
        child = context.Process(target=_read_all, args=args, daemon=True)
        child.start()
        port = here.recv()
        writers = [_writer(kind, port, files) for _ in range(n_sockets)]
        assert here.recv() == "connected"
        page = memoryview(bytearray(_PIECE_BYTES))
        threads = [
            threading.Thread(target=_write_all, args=(writer, page, each)) for _, writer in writers
        ]
        begun, cpu_begun = time.perf_counter(), time.process_time()
        for thread in threads:
            thread.start()
        receiver_s = here.recv()
        took_s = time.perf_counter() - begun
        for thread in threads:
            thread.join()
        sender_s = time.process_time() - cpu_begun
        for stream, _ in writers:
            stream.close()
        here.send("end")
        child.join()
    n_bytes = each * n_sockets
    return BareRate(n_bytes / took_s, 1e9 * sender_s / n_bytes, 1e9 * receiver_s / n_bytes)


def _write_all(writer: Writer, page: memoryview, n_bytes: int) -> None:
    while n_bytes:
        n_bytes -= writer.write([page[: min(n_bytes, len(page))]])
    while writer.is_behind:
        writer.write([])


def _writer(kind: str, port: int, files: tuple[str, str] | None) -> tuple[socket.socket, Writer]:
    stream = socket.create_connection(("127.0.0.1", port))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if files is None:
        return stream, PlainWriter(stream) if kind == PLAIN else EncryptedWriter(stream, _KEY)
    secured = _context(ssl.PROTOCOL_TLS_CLIENT, files).wrap_socket(
        stream, server_hostname="localhost"
    )
    return secured, _TlsWriter(secured)


def _reader(kind: str, stream: socket.socket, files: tuple[str, str] | None) -> Reader:
    if files is None:
        stream.setblocking(False)
        return PlainReader(stream) if kind == PLAIN else EncryptedReader(stream, _KEY)
    context = _context(ssl.PROTOCOL_TLS_SERVER, files)
    secured = context.wrap_socket(stream, server_side=True)
    secured.setblocking(False)
    return _TlsReader(secured)


def _context(protocol: int, files: tuple[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(*files)
    context.load_verify_locations(files[0])
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _read_all(
    kind: str, n_sockets: int, each: int, files: tuple[str, str] | None, pipe: Connection
) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname()[1])
    selector = selectors.DefaultSelector()
    for _ in range(n_sockets):
        stream = listener.accept()[0]
        reader: Any = _reader(kind, stream, files)
        source = reader.stream if kind == TLS else stream
        selector.register(source, selectors.EVENT_READ, reader)
    pipe.send("connected")
    page = memoryview(bytearray(_READ_BYTES))
    begun = time.process_time()
    left = n_sockets * each
    while left:
        for key, _ in selector.select():
            while True:
                try:
                    left -= key.data.read_into([page])
                except BlockingIOError:
                    break
                if not left:
                    break
    pipe.send(time.process_time() - begun)
    pipe.recv()


def _certificate(folder: Path) -> tuple[str, str]:
    """Write a self-signed certificate for localhost and its key, which both sides use."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return str(cert_file), str(key_file)
