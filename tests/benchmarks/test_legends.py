"""Matplotlib warns of a legend without a place where drawing has taken a second, as it may on a
busy machine, and a warning fails a test."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_legend_has_its_place() -> None:
    sources = [path for top in ("benchmarks", "deploy") for path in (ROOT / top).rglob("*.py")]
    calls = [
        call for path in sources for call in re.findall(r"\.legend\([^)]*\)", path.read_text())
    ]
    assert calls
    assert not [call for call in calls if "loc=" not in call]
