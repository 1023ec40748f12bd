"""Dashboard and alerts, read by the tools that read them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.monitoring.prometheus import MONITORING, needs_prometheus

HERE = Path(__file__).parent
ALERTS = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"][0]["rules"]


@needs_prometheus
@pytest.mark.parametrize(
    "command",
    [
        ("check", "rules", str(MONITORING / "alerts.yaml")),
        ("check", "config", "--syntax-only", str(MONITORING / "prometheus.yaml")),
        ("test", "rules", str(HERE / "alerts_test.yaml")),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_promtool_accepts_rules_and_configuration_and_sees_each_alert_fire(
    command: tuple[str, ...],
) -> None:
    ran = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_alert_has_a_test_and_a_runbook() -> None:
    tested = yaml.safe_load((HERE / "alerts_test.yaml").read_text())["tests"]
    fires = {
        case["alertname"]
        for test in tested
        for case in test["alert_rule_test"]
        if case.get("exp_alerts")
    }
    assert fires == {alert["alert"] for alert in ALERTS}
    page = (MONITORING.parents[1] / "docs" / "observability.md").read_text()
    anchors = {
        re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-"))
        for heading in re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    }
    for alert in ALERTS:
        where, _, anchor = alert["annotations"]["runbook_url"].partition("#")
        assert where == "https://docs.twolane.example/observability.html"  # the site's file
        assert anchor in anchors, alert["alert"]


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not mine & cells, panel["title"]
        assert max(x for x, _ in mine) < 24
        cells |= mine
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
