"""Checks, before anything is started, whether a process may open its listeners."""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from twolane.deploy.errors import StartError
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec
from twolane.router.shared.address import without_secrets
from twolane.rpc.listen import ListenError
from twolane.security.credentials import Protection, UnprotectedError

log = logging.getLogger(__name__)
_WARN_S = 60.0
CERTS = Path("~/.config/twolane/certs")  # where `twolane certs` puts them unless it is told


class UnprotectedStartError(StartError):
    """A listener needs TLS. The text has the command to type instead; the exit code is 2."""


class UnusedOptionError(StartError):
    """TLS files are named, and no listener uses them, or a port cannot be used. The exit
    code is 2."""


def check_listeners(specs: Iterable[ProcessSpec], command: Sequence[str]) -> None:
    """Raise `UnprotectedStartError` if a listener needs TLS; its text has `command`, the user's
    own, with the options that it lacks. Raise `UnusedOptionError` for a port of operators where
    no certificate can be shown, and `StartError` if the TLS files cannot be used."""
    for spec in specs:
        try:
            check(spec)
        except UnprotectedError as error:
            raise UnprotectedStartError(f"{error}. Type\n{_lines(command)}") from error
        except ListenError as error:
            raise StartError(str(error)) from error
        check_admin_port(spec)


def check_admin_port(spec: ProcessSpec) -> None:
    """Raise `UnusedOptionError` for a port of operators where no certificate can be shown."""
    if not isinstance(spec, RouterSpec) or spec.settings.admin_port is None:
        return
    at = spec.bind_host, "--bind-host"
    if spec.credentials.protection(*at) is not Protection.TLS:
        raise UnusedOptionError(
            f"--admin-port takes certificates, and at --bind-host {spec.bind_host}, without TLS, "
            "nobody shows one: leave it out, as commands on this machine use a socket, or name a "
            "--bind-host that other machines reach, with --tls-ca, --tls-cert and --tls-key"
        )


def check_tls_is_used(specs: Iterable[ProcessSpec]) -> None:
    """Raise `UnusedOptionError` if TLS files are named for these processes, and all their listeners
    are plain: naming the files asks for TLS."""
    listening = [(spec.credentials, at) for spec in specs for at in _listeners(spec)]
    if any(its.tls is None or its.protection(*at) is Protection.TLS for its, at in listening):
        return
    raise UnusedOptionError(
        "TLS is not used on the loopback, where every listener is (--host, --bind-host): leave "
        "--tls-ca, --tls-cert and --tls-key out, or listen where other machines reach it"
    )


def check(spec: ProcessSpec) -> None:
    """Raise `ListenError` if a listener needs TLS, or if these TLS files cannot be used for it."""
    for host, option in _listeners(spec):
        spec.credentials.check(host, option)


def insecure_listeners(spec: ProcessSpec) -> list[str]:
    """The listeners that other machines reach without TLS, each as its option and host."""
    return [
        f"{option} {host}"
        for host, option in _listeners(spec)
        if spec.credentials.protection(host, option) is Protection.INSECURE
    ]


async def warn_of(listeners: Sequence[str]) -> None:
    """Log a warning each minute while there are listeners without TLS."""
    while listeners:
        log.warning("without TLS, reached from other machines: %s", ", ".join(listeners))
        await asyncio.sleep(_WARN_S)


def _listeners(spec: ProcessSpec) -> Iterator[tuple[str, str]]:
    """Each host that the process listens at, and the option that sets it."""
    if isinstance(spec, RouterSpec):
        yield spec.settings.host, "--host"
    elif spec.metrics_host:
        yield spec.metrics_host, "--host"
    yield spec.bind_host, "--bind-host"


def _lines(command: Sequence[str]) -> str:
    """The command with certificates, preceded by the commands that issue them, and the command with
    `--insecure`."""
    ca, cert, key = (CERTS / name for name in ("ca.crt", "router-0.crt", "router-0.key"))
    files = f"--tls-ca {ca} --tls-cert {cert} --tls-key {key}"
    typed = without_secrets(shlex.join(command))
    lines = [f"  {typed} {files}"]
    if not cert.expanduser().exists():
        lines.insert(0, "  twolane certs issue router/router-0 --host $(hostname) --host localhost")
        if not ca.expanduser().exists():
            lines.insert(0, "  twolane certs init")
    return "\n".join([*lines, "or, where the network is private,", f"  {typed} --insecure"])
