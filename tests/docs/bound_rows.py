"""What docs/limits.md says of each bound, apart from its value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Row(NamedTuple):
    """What a field bounds, the option that sets it (empty: none), and what happens beyond it."""

    what: str
    option: str
    beyond: str


class Section(NamedTuple):
    title: str
    text: str
    rows: Mapping[type, Mapping[str, Row]]
