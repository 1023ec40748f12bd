"""`twolane bundle`: collects what is needed to find out what went wrong."""

from __future__ import annotations

import io
import json
import re
import tarfile
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from google.protobuf.message import Message

from twolane import __version__
from twolane.cli.common import json_option, operator, operator_option, print_json
from twolane.cli.ops.output import as_json as json_of
from twolane.cli.ops.output import count
from twolane.cli.waiting import telling
from twolane.errors import TwolaneError
from twolane.v1 import admin_pb2, cluster_pb2

PARTS: dict[str, tuple[str, Message]] = {
    "status": ("GetClusterStatus", cluster_pb2.GetClusterStatusRequest()),
    "requests": ("ListRequests", admin_pb2.ListRequestsRequest(page_size=1_000)),
    "ended": ("ListRequests", admin_pb2.ListRequestsRequest(page_size=1_000, ended=True)),
    "pages": ("GetPages", admin_pb2.GetPagesRequest(check=True, rows=1_000)),
    "events": ("ListEvents", admin_pb2.ListEventsRequest(page_size=1_000)),
    "config": ("GetConfig", admin_pb2.GetConfigRequest()),
    "diagnosis": ("Diagnose", admin_pb2.DiagnoseRequest()),
}
REDACTED = "(redacted)"
_SECRET = re.compile(r"(^|[._])(secret|password|passphrase|api_?keys?|keys?|token|store|url)$")


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, writable=True, path_type=Path))
@json_option
@operator_option
def bundle(file: Path, *, as_json: bool, endpoint: str | None) -> None:
    """Write what routers know to FILE, a .tar.gz, for a support case.

    It has the status, the running and the recently ended requests, pages, events, the configuration
    and a diagnosis. It has no prompts, no answers and no keys.
    """
    found: dict[str, Any] = {}
    failed: dict[str, TwolaneError] = {}
    with (
        operator(endpoint) as admin,
        telling(lambda: f"{len(found)} of {len(PARTS)} parts are there"),
    ):
        for name, asked in PARTS.items():
            try:
                found[name] = json_of(admin.call(*asked))
            except TwolaneError as error:  # the other parts are worth having
                found[name], failed[name] = {"missing": error.message}, error
    if failed.keys() == PARTS.keys():
        raise failed["status"]
    missing = {name: error.message for name, error in failed.items()}
    found["about"] = {"twolane": __version__, "made_at": time.time(), "missing": missing}
    _write(file, _archive(found))
    if as_json:
        parts = [name for name in found if name not in missing]
        its = {"file": str(file), "parts": parts, "missing": missing}
        print_json(its, schema="twolane.Bundle")
        return
    click.echo(f"{file}: {count(len(found) - len(missing), 'part')}")
    for name, why in missing.items():
        click.echo(f"missing: {name} ({why})")


def _write(file: Path, content: bytes) -> None:
    """Write all of it, for the owner alone, or leave what was there."""
    if file.exists() and not file.is_file():
        raise click.ClickException(f"{file} is not a regular file")
    try:
        handle, part = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    except OSError as error:
        error.filename = str(file)
        raise
    try:
        with open(handle, "wb") as stream:
            stream.write(content)
        Path(part).replace(file)
    except OSError as error:
        Path(part).unlink()
        raise click.ClickException(f"cannot write {file}: {error.strerror}") from error


def _archive(found: Mapping[str, Any]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, part in found.items():
            raw = json.dumps(redacted(part), indent=1).encode()
            info = tarfile.TarInfo(f"twolane-bundle/{name}.json")
            info.size, info.mtime, info.mode = len(raw), int(time.time()), 0o600
            archive.addfile(info, io.BytesIO(raw))
    return packed.getvalue()


def redacted(value: Any) -> Any:
    """The same without values whose names say that they are secret."""
    if isinstance(value, dict):
        is_field = _SECRET.search(str(value.get("name", ""))) is not None
        return {
            key: REDACTED
            if (_SECRET.search(key) and isinstance(part, str) and part)
            or (is_field and key in ("value", "default", "differs"))
            else redacted(part)
            for key, part in value.items()
        }
    if isinstance(value, list):
        return [redacted(part) for part in value]
    return value
