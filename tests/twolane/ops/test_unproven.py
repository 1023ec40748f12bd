"""What was not looked at is no proof: `check` and `pages --check` exit with 5."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result

from tests.twolane.conftest import Door
from tests.twolane.ops.scripted_admin import ScriptedAdmin
from twolane.cli.app import app


def run(door: Door, line: str) -> Result:
    return CliRunner().invoke(app, [*line.split(), "--endpoint", door.admin])


@pytest.mark.parametrize(
    ("silent", "line", "code"),
    [
        ((), "pages --check", 0),
        (("prefill-0",), "pages --check", 5),
        (("router-2",), "pages --check", 5),
        (("router-2",), "pages --check --quiet", 5),
        (("prefill-0", "router-2"), "pages --check --json", 5),
        (("prefill-0",), "pages", 0),
    ],
)
def test_a_process_that_has_not_checked_its_tables_is_told_by_the_exit_code(
    silent: tuple[str, ...], line: str, code: int, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedAdmin, "silent", silent)
    done = run(door, line)
    assert done.exit_code == code, done.output


def test_an_inconsistent_table_says_more_than_a_process_that_is_silent(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedAdmin, "is_broken", True)
    done = run(door, "pages --check")
    assert done.exit_code == 1
    assert "tables are off: decode-0" in done.output


def test_a_worker_that_a_check_leaves_out_is_named_and_exits_with_5(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedAdmin, "left_out", ("decode-1",))
    done = run(door, "check")
    assert done.exit_code == 5
    assert "3 comparisons, 384 tokens: equal bit for bit; 1 not made" in done.output
    assert "decode-1 alone        not compared: it is suspect" in done.output


def test_a_dry_run_names_what_would_be_left_out_and_does_not_count_it(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedAdmin, "left_out", ("decode-1",))
    done = run(door, "check --dry-run")
    assert done.exit_code == 0
    assert "3 comparisons would be made" in done.output
    assert "decode-1 alone: not compared: it is suspect" in done.output
