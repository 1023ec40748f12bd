"""What another version has written is read: specs, saved wishes, evidence of processes."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

import pytest

from tests.skew.documents import KEPT, KINDS, examples
from twolane.deploy.controller.desired import Desired, Mode
from twolane.deploy.launch.events import read_event
from twolane.deploy.spec import spec_json
from twolane.deploy.spec.spec_json import from_json, from_value, said, to_json

EARLIER: dict[str, Any] = json.loads(KEPT.read_text())
each_kind = pytest.mark.parametrize("name", sorted(KINDS))


def with_later_keys(value: Any) -> Any:
    """As a later version might write it, in which every object has one key more."""
    if isinstance(value, list):
        return [with_later_keys(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {key: with_later_keys(part) for key, part in value.items()} | {"later": {"its": [1]}}


def same_in(ours: Any, theirs: Any) -> bool:
    """Whether all that they have written is here, too."""
    if isinstance(theirs, dict):
        return all(key in ours and same_in(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same_in, ours, theirs))
    return bool(ours == theirs)


@each_kind
def test_this_version_reads_all_that_the_earlier_one_has_written(name: str) -> None:
    read: Any = from_value(KINDS[name], EARLIER[name])
    assert same_in(json.loads(to_json(read)), EARLIER[name]), "a key is gone or means another thing"


@each_kind
def test_keys_of_a_later_version_are_ignored_with_a_line_in_the_log(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec_json._tell_unknown.cache_clear()
    example = examples()[name]
    text = json.dumps(with_later_keys(json.loads(to_json(example))))
    with caplog.at_level(logging.WARNING):
        assert from_json(KINDS[name], text) == example
        assert from_json(KINDS[name], text) == example
    lines = [line for line in caplog.messages if line.startswith(f"{name}: ignoring")]
    assert lines == [f"{name}: ignoring keys of another version: later"], "told once"


def test_an_event_of_a_kind_that_only_a_later_version_has_is_left_out() -> None:
    assert read_event('{"kind": "moved", "name": "decode-0"}') is None
    assert read_event('{"kind": "died", "colour": 1}') is not None


def test_a_key_of_a_later_version_does_not_replace_a_process_until_it_is_set() -> None:
    @dataclasses.dataclass(frozen=True)
    class Earlier:
        n: int
        names: tuple[str, ...] = ()

    @dataclasses.dataclass(frozen=True)
    class Later(Earlier):
        limit: int = 3
        inner: Earlier = dataclasses.field(default_factory=lambda: Earlier(1))

    assert said(Earlier(1)) == said(Later(1)) == {"n": 1}
    assert said(Later(1, limit=4)) == {"n": 1, "limit": 4}
    assert said(Later(1, ("a",), inner=Earlier(2)))["inner"] == {"n": 2}


def test_a_mode_that_only_a_later_version_has_is_kept() -> None:
    kept = from_json(Desired, '{"mode": "careful"}')
    assert json.loads(to_json(kept))["mode"] == "careful"
    assert "careful" not in {*Mode}
