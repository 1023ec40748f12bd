"""Which pages of docs/, and which other files, are made from the code, and by what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.docs import chart_schema, commands, limits, supported_models
from twolane.deploy.monitoring.dashboard import dashboard_json

ROOT = Path(__file__).parents[2]
PAGES: Mapping[Path, Callable[[], str]] = {
    ROOT / "docs" / "supported-models.md": supported_models.page,
    ROOT / "docs" / "limits.md": limits.page,
    ROOT / "docs" / "commands.md": commands.page,
    ROOT / "deploy" / "monitoring" / "dashboard.json": dashboard_json,
    ROOT / "deploy" / "chart" / "twolane" / "values.schema.json": chart_schema.page,
}
