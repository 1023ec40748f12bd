"""How a process of a cluster protects its listeners and its calls.

    address             a listener                                a call
    loopback, unix:     plain; callers present the secret         plain, presents the secret
    any other           TLS; callers present a certificate        TLS, presents its certificate
      without files     does not start                            plain, presents nothing
      `insecure`        plain; callers present the secret         plain, presents the secret

The same rule holds for every listener and every channel between processes.
"""

from __future__ import annotations

import enum
import ssl
from dataclasses import dataclass, field
from functools import partial

import grpc

from twolane.rpc.channel_options import CHANNEL_OPTIONS
from twolane.rpc.listen import ListenError, bind_port, is_local, join
from twolane.rpc.secret import new_secret, shown
from twolane.rpc.shared_port import SharedPort
from twolane.security.gate import Gate, KeyCheck
from twolane.security.identity import Identity, Role
from twolane.security.tls import (
    TlsFiles,
    TlsFilesError,
    channel_credentials,
    check_files,
    server_context,
    server_credentials,
    server_name,
)

_UNIX = "unix:"


class UnprotectedError(ListenError):
    """A listener that other machines can reach has no TLS."""


class Protection(enum.Enum):
    """How a listener is protected."""

    LOCAL = "local"  # no other machine can reach it
    TLS = "tls"
    INSECURE = "insecure"  # plain though other machines can reach it: the operator allowed that


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a process presents to others, and whether it may listen without TLS.

    `secret` is what processes of one cluster present to each other on one machine. `tls` are the
    files for all traffic that leaves the machine. `insecure` allows listeners beyond the loopback
    without them.
    """

    secret: str = field(default_factory=new_secret, repr=False)
    tls: TlsFiles | None = None
    insecure: bool = False

    def protection(self, host: str, option: str) -> Protection:
        """The protection of a listener at `host`, which `option` sets. Raises
        `UnprotectedError`."""
        if is_local(host):
            return Protection.LOCAL
        if self.tls is not None:
            return Protection.TLS
        if self.insecure:
            return Protection.INSECURE
        raise UnprotectedError(
            f"{option} {host} can be reached from other machines, so it needs TLS: --tls-ca, "
            "--tls-cert and --tls-key, with files from `twolane certs` or your own"
        )

    def gate(
        self,
        listener: str,
        host: str,
        option: str,
        *,
        advertised: str = "",
        takes_secret: bool = True,
        anonymous: Identity | None = None,
        keys: KeyCheck | None = None,
    ) -> Gate:
        """The gate of the listener at `host`, which `option` sets. `advertised` is the address that
        others dial instead of `host`. Raises `ListenError`."""
        protection = self.protection(host, option)
        if protection is Protection.TLS and advertised and is_local(advertised):
            raise ListenError(
                f"{option} is {host}, where callers must use TLS, and --advertise-host is "
                f"{advertised}, where they do not: advertise an address that other machines reach"
            )
        return Gate(
            listener,
            is_private=protection is not Protection.TLS,
            secret=self.secret if takes_secret else "",
            anonymous=anonymous,
            keys=keys,
        )

    def bind(
        self,
        server: grpc.aio.Server | SharedPort,
        host: str,
        port: int,
        option: str,
        *,
        ports: str = "",
        certificate: ssl.VerifyMode = ssl.CERT_REQUIRED,
    ) -> int:
        """Make `server` listen at `host`, and return the port, which is from the range `ports` if
        `port` is 0 (`twolane.rpc.listen.bind_port`). Raises `ListenError`."""
        make = None
        if self.protection(host, option) is Protection.TLS:
            assert self.tls is not None
            make = partial(server_credentials, self.tls, certificate=certificate)

        def open_at(port: int) -> int:
            if isinstance(server, SharedPort):
                return server.bind(host, port, make)
            if make is None:
                return server.add_insecure_port(join(host, port))
            return server.add_secure_port(join(host, port), make())

        try:
            return bind_port(open_at, host, port, option, ports)
        except TlsFilesError as error:
            raise ListenError(str(error)) from error

    def ssl_context(
        self, host: str, option: str, *, certificate: ssl.VerifyMode = ssl.CERT_REQUIRED
    ) -> ssl.SSLContext | None:
        """The TLS context of an asyncio server at `host`; None if it is plain. Raises
        `ListenError`."""
        if self.protection(host, option) is not Protection.TLS:
            return None
        assert self.tls is not None
        try:
            return server_context(self.tls, certificate=certificate, listener=f"{option} {host}")
        except TlsFilesError as error:
            raise ListenError(str(error)) from error

    def check(self, host: str, option: str) -> None:
        """Raise what opening a listener at `host` would raise."""
        if self.protection(host, option) is Protection.TLS:
            assert self.tls is not None
            try:
                check_files(self.tls)
            except TlsFilesError as error:
                raise ListenError(str(error)) from error

    def channel(self, endpoint: str, role: Role) -> grpc.aio.Channel:
        """A channel to a process of that role. The files are read now, so a new channel has the
        present certificates. Raises `TlsFilesError`."""
        if self.tls is None or is_local(_host(endpoint)):
            return grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        name = ("grpc.ssl_target_name_override", server_name(role))
        return grpc.aio.secure_channel(
            endpoint, channel_credentials(self.tls), options=[*CHANNEL_OPTIONS, name]
        )

    def check_calls(self, endpoint: str, option: str) -> None:
        """Raise `ListenError` if calls to `endpoint` would be plain, or cannot be made with these
        files. Meant for endpoints that are known at the start; calls to others fail when they are
        dialled."""
        self.check(_host(endpoint), option)

    def metadata(self, endpoint: str) -> tuple[tuple[str, str], ...]:
        """The metadata of calls to `endpoint`. The secret leaves the machine only if the operator
        allowed that."""
        is_plain = self.tls is None and self.insecure
        return shown(self.secret) if is_local(_host(endpoint)) or is_plain else ()


def _host(endpoint: str) -> str:
    return endpoint if endpoint.startswith(_UNIX) else endpoint.rpartition(":")[0]
