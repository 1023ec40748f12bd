"""The last lines of a log's file, as an operator asks for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from twolane.rpc.log_file import read_log_file
from twolane.rpc.log_tail import LINE_CHARS, MOST_LINES
from twolane.v1 import acts_pb2


def read(folder: Path, **asked: object) -> acts_pb2.ReadLogResponse:
    request = acts_pb2.ReadLogRequest(**{"name": "w", **asked})  # type: ignore[arg-type]
    found = read_log_file(folder, request, "here")
    assert found is not None
    assert found.age_s < 60.0
    return found.response


def test_the_last_lines_are_read_and_later_those_that_came_since(tmp_path: Path) -> None:
    log = tmp_path / "w.log"
    log.write_text("".join(f"line {n}\n" for n in range(300)))
    found = read(tmp_path)
    assert list(found.lines) == [f"line {n}" for n in range(200, 300)]
    assert list(read(tmp_path, lines=2).lines) == ["line 298", "line 299"]
    with log.open("a") as file:
        file.write("é 300\n")
    since = {"after_line": found.last_line, "source": "here"}
    assert list(read(tmp_path, **since).lines) == ["é 300"]
    assert len(read(tmp_path, **(since | {"source": "elsewhere"})).lines) == 100
    log.write_text("anew\n")
    assert list(read(tmp_path, **since).lines) == ["anew"]


def test_line_is_read_once_when_it_has_ended(tmp_path: Path) -> None:
    log = tmp_path / "w.log"
    log.write_text("é 1\nhalf")
    first = read(tmp_path)
    assert list(first.lines) == ["é 1"]
    since = {"after_line": first.last_line, "source": "here"}
    again = read(tmp_path, **since)
    assert (list(again.lines), again.last_line) == ([], first.last_line)
    with log.open("a") as file:
        file.write(" of it\nnext")
    assert list(read(tmp_path, **since).lines) == ["half of it"]


def test_line_that_is_longer_than_what_is_read_is_cut_out(tmp_path: Path) -> None:
    log = tmp_path / "w.log"
    log.write_bytes(b"x" * 5_000_000)
    first = read(tmp_path)
    assert (list(first.lines), first.last_line) == ([], 0)
    with log.open("ab") as file:
        file.write(b"x\nnext\n")
    assert list(read(tmp_path, source="here").lines) == ["next"]


def test_a_huge_file_costs_its_end_alone(tmp_path: Path) -> None:
    (tmp_path / "w.log").write_bytes(b"x" * 5_000_000 + b"\nshort\n" + b"y" * 9_000 + b"\xff\n")
    found = read(tmp_path)
    assert [line[:5] for line in found.lines] == ["short", "yyyyy"]
    assert len(found.lines[1]) == LINE_CHARS
    (tmp_path / "w.log").write_text("n\n" * 10_000)
    assert len(read(tmp_path, lines=100_000).lines) == MOST_LINES


def test_file_that_is_gone_since_its_folder_was_listed_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "w.log").symlink_to(tmp_path / "gone")
    assert read_log_file(tmp_path, acts_pb2.ReadLogRequest(name="w"), "here") is None


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "secret.log", "*", "", "v"])
def test_nothing_outside_of_the_folder_is_read(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "w.log").write_text("w\n")
    (tmp_path / "secret.log").write_text("secret\n")
    assert read_log_file(folder, acts_pb2.ReadLogRequest(name=name), "here") is None
