"""Which pages of docs/ are made from the code, and by what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.docs import commands, limits, supported_models

ROOT = Path(__file__).parents[2]
PAGES: Mapping[Path, Callable[[], str]] = {
    ROOT / "docs" / "supported-models.md": supported_models.page,
    ROOT / "docs" / "limits.md": limits.page,
    ROOT / "docs" / "commands.md": commands.page,
}
