"""`twolane certs`: a certificate authority and its certificates, for sites without their own."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twolane.cli.common import console, json_option, print_json
from twolane.cli.rows import Rows
from twolane.errors import InvalidRequestError

if TYPE_CHECKING:
    from twolane.security.certs import Issued, Requested

DIRECTORY = Path("~/.config/twolane/certs")

dir_option = click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    default=DIRECTORY,
    show_default=True,
    help="Directory of the authority and its certificates.",
)
identities_argument = click.argument("identities", metavar="ROLE/NAME...", nargs=-1, required=True)
hosts_option = click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME_OR_IP",
    help="How clients reach it; may be repeated.",
)


@click.group()
def certs() -> None:
    """Make certificates, for TLS between machines."""


@certs.command()
@click.option("--days", type=click.IntRange(1, 3650), default=3650, show_default=True)
@dir_option
@json_option
def init(*, directory: Path, days: int, as_json: bool) -> None:
    """Make a certificate authority. Its key issues certificates: keep it off the servers."""
    with _library():
        from twolane.security import certs as library

        made = library.init(directory.expanduser(), days=days)
    _show([made], as_json)
    if not as_json:
        _next(["twolane", "certs", "issue", "router/router-0", "--host", "localhost"], directory)


@certs.command()
@identities_argument
@hosts_option
@click.option("--days", type=click.IntRange(1, 3650), default=30, show_default=True)
@dir_option
@json_option
def issue(
    *, identities: Sequence[str], hosts: Sequence[str], directory: Path, days: int, as_json: bool
) -> None:
    """Issue a certificate for each of router/NAME, worker/NAME, agent/NAME, controller/NAME,
    operator/NAME, viewer/NAME, client/TENANT/NAME.

    NAME is the name of the process, such as router-0 or decode-0; the launcher's is controller.
    """
    with _library():
        from twolane.security import certs as library

        made = library.issue(directory.expanduser(), identities, hosts=hosts, days=days)
    _show(made, as_json)
    if not as_json:
        _tell_use(made)


@certs.command()
@identities_argument
@hosts_option
@dir_option
@json_option
def request(
    *, identities: Sequence[str], hosts: Sequence[str], directory: Path, as_json: bool
) -> None:
    """Make a key and a signing request, on the host of a process. The key stays there; sign the
    request with `twolane certs sign` on the authority's machine."""
    with _library():
        from twolane.security import certs as library

        made = library.request(directory.expanduser(), identities, hosts=hosts)
    if as_json:
        print_json([_asked(each) for each in made])
        return
    rows = Rows(("wrote", "key", "identity", "hosts"), ())
    for each in made:
        rows.add_row(str(each.request), each.key.name, each.identity, " ".join(each.hosts))
    console().print(rows)
    names = " ".join(shlex.quote(each.request.name) for each in made)
    click.echo(f"next, with copies on the authority's machine: twolane certs sign {names}")


@certs.command()
@click.argument(
    "requests",
    metavar="FILE.csr...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
)
@click.option("--days", type=click.IntRange(1, 3650), default=30, show_default=True)
@click.option(
    "--yes", is_flag=True, help="Do not ask whether the senders may have these identities."
)
@dir_option
@json_option
def sign(*, requests: Sequence[Path], days: int, yes: bool, directory: Path, as_json: bool) -> None:
    """Sign requests. Each certificate is written beside its request: copy it, with ca.crt, to the
    host that made the request. A request can name any identity: you are asked whether its sender
    may have it.
    """
    with _library():
        from twolane.security import certs as library

        asked = [library.read_request(path) for path in requests]
        for each in asked:
            at = f" at {', '.join(each.hosts)}" if each.hosts else ""
            if not yes and not click.confirm(f"{each.request} is {each.identity}{at}?", err=True):
                raise InvalidRequestError(f"{each.request} was not signed, nor were the others")
        made = library.sign(directory.expanduser(), requests, days=days)
    _show(made, as_json)


@certs.command()
@click.argument("names", metavar="[NAME...]", nargs=-1)
@click.option("--days", type=click.IntRange(1, 3650), default=30, show_default=True)
@dir_option
@json_option
def renew(*, names: Sequence[str], directory: Path, days: int, as_json: bool) -> None:
    """Replace the certificates with these file names (without .crt), or all, by new ones with new
    keys. Those made from a request keep their key: copy them to their hosts again.

    Processes use them from the next connection on, without a restart.
    """
    with _library():
        from twolane.security import certs as library

        made = library.renew(directory.expanduser(), names, days=days)
    _show(made, as_json)


@certs.command(name="nobody")
@dir_option
@json_option
def write_nobody(*, directory: Path, as_json: bool) -> None:
    """Write the public certificate and key for gRPC clients that have an API key and no certificate
    of their own. twolane's own clients do not need these files."""
    with _library():
        from twolane.security import certs as library

        cert, key = library.write_nobody(directory.expanduser())
    if as_json:
        print_json({"cert": str(cert), "key": str(key)})
        return
    click.echo(f"wrote {cert} {key}")


@contextmanager
def _library() -> Iterator[None]:
    """A block that imports the library, and raises its errors as `TwolaneError`s."""
    from twolane.security.cert_files import CertsError

    try:
        yield
    except ModuleNotFoundError as error:
        raise InvalidRequestError(
            f"making certificates needs {error.name}: pip install 'twolane[serve]'"
        ) from error
    except CertsError as error:
        raise InvalidRequestError(str(error)) from error


def _show(made: Sequence[Issued], as_json: bool) -> None:
    if as_json:
        print_json([_fields(each) for each in made])
        return
    rows = Rows(("wrote", "key", "identity", "hosts", "until"), ())
    for each in made:
        until = f"{each.expires:%Y-%m-%d %H:%M} UTC"
        who = each.identity or "authority"
        rows.add_row(str(each.cert), each.key.name, who, " ".join(each.hosts), until)
    console().print(rows)


def _fields(issued: Issued) -> dict[str, Any]:
    return {
        "identity": issued.identity,
        "cert": str(issued.cert),
        "key": str(issued.key),
        "hosts": issued.hosts,
        "expires": issued.expires.isoformat(),
    }


def _asked(made: Requested) -> dict[str, Any]:
    return {
        "identity": made.identity,
        "request": str(made.request),
        "key": str(made.key),
        "hosts": made.hosts,
    }


def _tell_use(made: Sequence[Issued]) -> None:
    """Print the command that uses a router's certificate or a person's, or where those of several
    machines belong."""
    kinds = {each.identity.partition("/")[0] for each in made}
    for each in made:
        if each.identity.startswith("router/") and not each.hosts:
            click.echo(
                f"{each.cert} names no host, so clients refuse it: delete it and its key, and "
                "issue it again with each --host that clients dial",
                err=True,
            )
    issued = next((each for each in made if each.identity.startswith("router/")), made[0])
    files = [str(issued.cert.with_name("ca.crt")), str(issued.cert), str(issued.key)]
    if "router" in kinds and kinds <= {"router", "worker"}:
        command = ["twolane", "up", "--host", "0.0.0.0"]
        options = ["--tls-ca", "--tls-cert", "--tls-key"]
    elif kinds <= {"operator", "viewer", "client"}:
        command = ["twolane", "models" if issued.identity.startswith("client/") else "status"]
        options = ["--ca", "--cert", "--key"]
    else:
        click.echo("next: copy ca.crt, and each certificate with its key, to its process's host")
        return
    _next(command + [part for pair in zip(options, files, strict=True) for part in pair], None)


def _next(command: Sequence[str], directory: Path | None) -> None:
    """Print the command to run next."""
    extra = [] if directory in (None, DIRECTORY) else ["--dir", str(directory)]
    click.echo(f"next: {shlex.join([*command, *extra])}")
