"""The pages that are made from the code are what the code makes."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import click
import pytest

from tests.docs.bounds import PARTS, SECTIONS, SWITCHES
from tests.docs.limits import default_of
from tests.docs.pages import PAGES
from twolane.deploy.cli.up_command import up


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_is_what_the_code_makes_of_it(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PAGES[path](), "run `make docs`"


def test_every_bound_of_a_config_has_a_row() -> None:
    for section in SECTIONS:
        for config, rows in section.rows.items():
            names = {field.name for field in fields(config)} - PARTS - SWITCHES
            assert set(rows) == names, config


def test_every_bound_has_a_default() -> None:
    for section in SECTIONS:
        for config, rows in section.rows.items():
            for name in rows:
                assert isinstance(default_of(config, name), int | float | None)


def test_every_option_of_a_bound_is_one_of_twolane_up() -> None:
    known = {name for each in up.params if isinstance(each, click.Option) for name in each.opts} | {
        "timeout_s=",
        "connect_timeout_s=",
        "call_timeout_s=",
    }
    for section in SECTIONS:
        for rows in section.rows.values():
            assert {row.option for row in rows.values() if row.option} <= known
