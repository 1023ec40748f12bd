"""What the recall benchmark refuses before it measures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.engine import recall


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--share 0", "more than 0, at most 1"),
        ("--share 2 --name part", "more than 0, at most 1"),
        ("--share 0.1", "would replace the saved result"),
        ("--batch 0", "at least 1"),
        ("--weights fp8", "needs --backend engine"),
        ("--device banana", "invalid choice"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["recall", *options.split()])
    with pytest.raises(SystemExit):
        recall.main()
    assert words in capsys.readouterr().err


def test_a_model_without_its_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["recall", "--model", str(tmp_path)])
    with pytest.raises(SystemExit):
        recall.main()
    assert f"{tmp_path}: no tokenizer.json" in capsys.readouterr().err


def test_what_the_engine_refuses_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    options = "--backend engine --device cpu --kv-dtype fp8 --name fp8"
    monkeypatch.setattr(sys, "argv", ["recall", *options.split()])
    with pytest.raises(SystemExit, match="need a GPU"):
        recall.main()
