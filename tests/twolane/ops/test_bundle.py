"""What a bundle has, and what it must not have."""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.twolane.conftest import Door
from twolane.cli.app import app
from twolane.cli.ops.bundle import PARTS, REDACTED, redacted
from twolane.v1 import cluster_pb2


def test_a_bundle_has_what_answers_and_names_what_is_missing(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "b.tar.gz"
    unknown = ("DrainWorker", cluster_pb2.DrainWorkerRequest())  # the door has no such method
    monkeypatch.setitem(PARTS, "config", unknown)
    done = CliRunner().invoke(app, ["bundle", str(file), "--endpoint", door.admin])
    assert done.exit_code == 0, done.output
    assert "missing: config" in done.stdout
    assert file.stat().st_mode & 0o777 == 0o600
    with tarfile.open(file) as archive:
        parts = {
            Path(member.name).stem: json.load(archive.extractfile(member) or file.open())
            for member in archive.getmembers()
        }
    assert {"status", "requests", "ended", "pages", "events", "diagnosis"} <= parts.keys()
    assert parts["events"]["schema"] == "twolane.v1.ListEventsResponse"
    assert "config" in parts["about"]["missing"]


def test_where_nobody_answers_there_is_no_bundle(tmp_path: Path) -> None:
    file = tmp_path / "b.tar.gz"
    arguments = ["bundle", str(file), "--endpoint", f"unix:{tmp_path}/none.sock"]
    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, file.exists()) == (3, False)
    assert done.stderr.startswith("Error: no cluster answers at unix:")


def test_a_full_disk_is_told_in_one_line_and_no_part_is_left(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "b.tar.gz"
    file.write_bytes(b"an older one")
    full = os.open("/dev/full", os.O_WRONLY)  # each write to it finds no space

    def make(dir: Path, prefix: str) -> tuple[int, str]:
        part = dir / f"{prefix}x"
        part.touch()
        return full, str(part)

    monkeypatch.setattr(tempfile, "mkstemp", make)
    done = CliRunner().invoke(app, ["bundle", str(file), "--endpoint", door.admin])
    assert (done.exit_code, [*tmp_path.iterdir()]) == (1, [file])
    assert file.read_bytes() == b"an older one"
    assert done.stderr == f"Error: cannot write {file}: No space left on device\n"


def test_keys_are_redacted_and_counts_of_tokens_are_not() -> None:
    value = {
        "api_key": "tl_x",
        "prompt_tokens": 7,
        "fields": [
            {"name": "router.store", "value": "redis://u:p@h", "default": "", "live": False},
            {"name": "limits.queue", "value": "7"},
        ],
    }
    safe = redacted(value)
    assert "tl_x" not in json.dumps(safe)
    assert "redis" not in json.dumps(safe)
    assert safe["prompt_tokens"] == 7
    assert safe["fields"][1]["value"] == "7"
    assert safe["fields"][0]["value"] == REDACTED
