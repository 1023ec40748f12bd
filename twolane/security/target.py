"""Where a client connects, and with which credentials: from its arguments, the environment, or a
context.

An endpoint set by argument or by `TWOLANE_ENDPOINT` takes precedence over the file's current
context. None of that context's credentials are sent to it, as a key belongs to its own cluster. A
context set by argument or by `TWOLANE_CONTEXT` is used, with explicit settings overriding its own.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc

from twolane.config import (
    DEFAULT_ENDPOINT,
    ClientConfig,
    api_key_from_env,
    check_api_key,
    check_endpoint,
    context_from_env,
    contexts_path,
    named_endpoint,
)
from twolane.errors import InvalidParameterError, InvalidRequestError
from twolane.rpc.channel_options import CHANNEL_OPTIONS
from twolane.rpc.listen import host_of, is_local
from twolane.security import nobody
from twolane.security.contexts import Context, read_contexts
from twolane.security.tls import TlsFiles, TlsFilesError, channel_credentials

_TOKEN_S = 30.0
_UNIX = "unix:"
Stamp = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Target:
    """An endpoint and the credentials for it. `ca`, `cert` and `key` are paths of PEM files, or
    empty; without `ca` the connection is plain."""

    endpoint: str
    ca: str = ""
    cert: str = ""
    key: str = ""
    api_key: str = field(default="", repr=False)

    def each(self) -> list[Target]:
        """One for every router that the endpoint names."""
        return [replace(self, endpoint=each) for each in self.endpoint.split(",")]

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of every call."""
        return (("authorization", f"Bearer {self.api_key}"),) if self.api_key else ()

    def channel(self) -> grpc.aio.Channel:
        """A new channel, with the present contents of the files. Raises `InvalidRequestError` if
        they cannot be used."""
        if not self.ca:
            return grpc.aio.insecure_channel(self.endpoint, options=CHANNEL_OPTIONS)
        if self.cert:
            files = TlsFiles(Path(self.ca), Path(self.cert), Path(self.key))
            try:
                credentials = channel_credentials(files)
            except TlsFilesError as error:
                raise InvalidRequestError(str(error), field="cert") from error
        else:
            credentials = grpc.ssl_channel_credentials(_read(self.ca), nobody.KEY, nobody.CERT)
        return grpc.aio.secure_channel(self.endpoint, credentials, options=CHANNEL_OPTIONS)

    def blocking_channel(self) -> grpc.Channel:
        """As `channel`, for calls that block."""
        if not self.ca:
            return grpc.insecure_channel(self.endpoint, options=CHANNEL_OPTIONS)
        try:
            credentials = channel_credentials(
                TlsFiles(Path(self.ca), Path(self.cert), Path(self.key))
            )
        except TlsFilesError as error:
            raise InvalidRequestError(str(error), field="cert") from error
        return grpc.secure_channel(self.endpoint, credentials, options=CHANNEL_OPTIONS)

    def stamp(self) -> Stamp:
        """A value that changes when a file is replaced; a new `channel` then has new
        certificates."""
        if not self.ca:
            return ()
        try:
            facts = [Path(path).stat() for path in (self.ca, self.cert, self.key) if path]
        except OSError:
            return ()
        return tuple((each.st_mtime_ns, each.st_ino) for each in facts)


def find_target(endpoint: str | None, config: ClientConfig) -> Target:
    """The target to use. Raises `InvalidRequestError`. May run the context's token_command."""
    named = endpoint or named_endpoint()
    context = _context(config, is_named=bool(named))
    ca, cert, key = (
        getattr(config, name) or getattr(context, name) for name in ("ca", "cert", "key")
    )
    if bool(cert) != bool(key):
        raise InvalidParameterError("cert", cert, "given together with key")
    if cert and not ca:
        raise InvalidParameterError("cert", cert, "given together with ca, the server's authority")
    api_key = config.api_key or api_key_from_env() or context.api_key or _token(context)
    target = Target(
        check_endpoint(named or context.endpoint or DEFAULT_ENDPOINT),
        str(ca),
        str(cert),
        str(key),
        check_api_key(api_key),
    )
    if target.api_key and not target.ca and not _is_private(target.endpoint):
        raise InvalidParameterError(
            "api_key", "…", "sent over TLS: name the server's authority with ca (--ca)"
        )
    return target


def find_admin_target(endpoint: str | None, config: ClientConfig) -> Target | None:
    """Where operators call, and with which certificate: `endpoint`, or the context's
    `admin_endpoint`. None if neither is set. Raises `InvalidRequestError`."""
    context = _context(config, is_named=bool(endpoint))
    named = endpoint or context.admin_endpoint
    if not named:
        return None
    check_endpoint(named)
    if named.startswith(_UNIX):
        return Target(named)
    ca, cert, key = (
        str(getattr(config, name) or getattr(context, name)) for name in ("ca", "cert", "key")
    )
    if not (ca and cert and key):
        raise InvalidParameterError(
            "endpoint",
            named,
            "called with an operator's or a viewer's certificate, its key and the server's "
            "authority: --ca, --cert and --key, or a context that has them",
        )
    return Target(named, ca, cert, key)


def _context(config: ClientConfig, *, is_named: bool) -> Context:
    name, path = config.context or context_from_env(), contexts_path()
    if name is None and is_named:
        return Context()
    contexts = read_contexts(path)
    name = name or contexts.current
    return contexts.find(name, path) if name else Context()


def _token(context: Context) -> str:
    command: Sequence[str] = shlex.split(context.token_command)
    if not command:
        return ""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_TOKEN_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or error
        text = f"a command that prints an API key; it failed: {str(said).strip()}"
        raise InvalidParameterError("token_command", context.token_command, text) from error
    return ran.stdout.strip()


def _is_private(endpoint: str) -> bool:
    return all(each.startswith(_UNIX) or is_local(host_of(each)) for each in endpoint.split(","))


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        text = f"a PEM file that can be read ({error.strerror})"
        raise InvalidParameterError("ca", path, text) from error
