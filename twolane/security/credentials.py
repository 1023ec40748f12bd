"""How a process of a cluster protects what it listens at, and what it calls.

    address             a listener there                          a call there
    loopback, unix:     plain; callers show the secret            plain, shows the secret
    any other           TLS; callers show a certificate           TLS, shows its certificate
      without files     does not start, unless `insecure`         plain, shows nothing

One rule for every listener and every channel between processes.
"""

from __future__ import annotations

import enum
import ssl
from dataclasses import dataclass, field
from functools import partial

import grpc

from twolane.rpc.listen import ListenError, bind_port, is_local, join
from twolane.rpc.options import CHANNEL_OPTIONS
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
    """A listener that other machines reach, without TLS."""


class Protection(enum.Enum):
    """Of a listener."""

    LOCAL = "local"  # no other machine reaches it
    TLS = "tls"
    INSECURE = "insecure"  # plain though other machines reach it: the operator allowed that


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a process shows others, and whether it listens without TLS.

    `secret` is what processes of one cluster show each other on one machine, `tls` the files for
    all that leaves the machine, `insecure` allows listeners beyond the loopback without them.
    """

    secret: str = field(default_factory=new_secret, repr=False)
    tls: TlsFiles | None = None
    insecure: bool = False

    def protection(self, host: str, option: str) -> Protection:
        """Of a listener at `host`, which `option` sets. Raises `UnprotectedError`."""
        if is_local(host):
            return Protection.LOCAL
        if self.tls is not None:
            return Protection.TLS
        if self.insecure:
            return Protection.INSECURE
        raise UnprotectedError(
            f"{option} {host} is not this machine alone, so it needs TLS: --tls-ca, --tls-cert and "
            "--tls-key, with files of `twolane certs` or your own"
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
        """Of the listener at `host`, which `option` sets. `advertised` is what others dial instead
        of `host`. Raises `ListenError`."""
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
        """Have `server` listen there, and return the port, which is from the range `ports` if
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
        """Of an asyncio server at `host`; None: it is plain. Raises `ListenError`."""
        if self.protection(host, option) is not Protection.TLS:
            return None
        assert self.tls is not None
        try:
            return server_context(self.tls, certificate=certificate, listener=f"{option} {host}")
        except TlsFilesError as error:
            raise ListenError(str(error)) from error

    def check(self, host: str, option: str) -> None:
        """Raises what opening a listener at `host` would raise."""
        if self.protection(host, option) is Protection.TLS:
            assert self.tls is not None
            try:
                check_files(self.tls)
            except TlsFilesError as error:
                raise ListenError(str(error)) from error

    def channel(self, endpoint: str, role: Role) -> grpc.aio.Channel:
        """To a process of that role. Its files are read now: a channel that is made anew has the
        certificates of today. Raises `TlsFilesError`."""
        if self.tls is None or is_local(_host(endpoint)):
            return grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        name = ("grpc.ssl_target_name_override", server_name(role))
        return grpc.aio.secure_channel(
            endpoint, channel_credentials(self.tls), options=[*CHANNEL_OPTIONS, name]
        )

    def check_calls(self, endpoint: str, option: str) -> None:
        """Raises `ListenError` if calls there would be plain, or cannot be made with these files.
        For endpoints that are known at the start; others fail when they are dialled."""
        self.check(_host(endpoint), option)

    def metadata(self, endpoint: str) -> tuple[tuple[str, str], ...]:
        """Of calls there. The secret never leaves the machine, unless the operator allowed that."""
        is_plain = self.tls is None and self.insecure
        return shown(self.secret) if is_local(_host(endpoint)) or is_plain else ()


def _host(endpoint: str) -> str:
    return endpoint if endpoint.startswith(_UNIX) else endpoint.rpartition(":")[0]
