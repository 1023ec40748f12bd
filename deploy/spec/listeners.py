"""The listeners of a process, and whether they may be opened, before anything is started."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from twolane.deploy.errors import StartError
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec
from twolane.router.shared.address import without_secrets
from twolane.rpc.listen import ListenError
from twolane.security.credentials import Protection, UnprotectedError

CERTS = Path("~/.config/twolane/certs")  # where `twolane certs` puts them unless it is told


class UnprotectedStartError(StartError):
    """With the line to type instead. Exit code 2."""


def check_listeners(specs: Iterable[ProcessSpec], command: Sequence[str]) -> None:
    """Raises `UnprotectedStartError` if a listener would need TLS, with `command`, which would open
    it, as it must be typed; `StartError` if the files for TLS cannot be used."""
    for spec in specs:
        try:
            check(spec)
        except UnprotectedError as error:
            raise UnprotectedStartError(f"{error}. Type\n{_lines(command)}") from error
        except ListenError as error:
            raise StartError(str(error)) from error


def check(spec: ProcessSpec) -> None:
    """Raises `ListenError` if a listener would need TLS, or cannot have it with these files."""
    for host, option in _listeners(spec):
        spec.credentials.check(host, option)


def insecure_listeners(spec: ProcessSpec) -> list[str]:
    """Hosts where other machines reach it without TLS, with their options."""
    return [
        f"{option} {host}"
        for host, option in _listeners(spec)
        if spec.credentials.protection(host, option) is Protection.INSECURE
    ]


def _listeners(spec: ProcessSpec) -> Iterator[tuple[str, str]]:
    """Hosts, and the options that set them."""
    if isinstance(spec, RouterSpec):
        yield spec.settings.host, "--host"
    elif spec.metrics_host:
        yield spec.metrics_host, "--host"
    yield spec.bind_host, "--bind-host"


def _lines(command: Sequence[str]) -> str:
    """The command with certificates, after how to make them; and without."""
    ca, cert, key = (CERTS / name for name in ("ca.crt", "router-0.crt", "router-0.key"))
    files = f"--tls-ca {ca} --tls-cert {cert} --tls-key {key}"
    typed = without_secrets(shlex.join(command))
    lines = [f"  {typed} {files}"]
    if not cert.expanduser().exists():
        lines.insert(0, "  twolane certs issue router/router-0 --host $(hostname) --host localhost")
        if not ca.expanduser().exists():
            lines.insert(0, "  twolane certs init")
    return "\n".join([*lines, "or, where the network is private,", f"  {typed} --insecure"])
