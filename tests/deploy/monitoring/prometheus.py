"""A real Prometheus that scrapes a cluster as our configuration says, each second."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ports import free_ports

MONITORING = Path(__file__).parents[3] / "deploy" / "monitoring"
needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="there is no prometheus; on Debian and Ubuntu: apt install prometheus",
)
_IN_TESTS = {"$__rate_interval": "10s", "$model": ".*"}
_WINDOW = "20s"


class Prometheus:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of a dashboard's or an alert's expression, now."""
        found: list[dict[str, Any]] = self._get("query", query=_filled(expression))["result"]
        return found

    def query_range(self, expression: str, since: float) -> list[dict[str, Any]]:
        """The same for each second from the Unix time `since` until now."""
        options = {"start": str(since), "end": str(time.time()), "step": "1"}
        found: list[dict[str, Any]] = self._get(
            "query_range", query=_filled(expression), **options
        )["result"]
        return found

    def alerts(self) -> set[str]:
        """The names of the alerts that fire."""
        alerts = self._get("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def _get(self, what: str, **options: str) -> Any:
        url = f"{self._url}/api/v1/{what}?{urllib.parse.urlencode(options)}"
        with urllib.request.urlopen(url, timeout=60) as response:
            return json.load(response)["data"]


def _filled(expression: str) -> str:
    """The expression with values for the dashboard's variables."""
    for variable, value in _IN_TESTS.items():
        expression = expression.replace(variable, value)
    return expression


@contextmanager
def prometheus(router_metrics: str, directory: Path) -> Iterator[Prometheus]:
    """Scrapes what the router at `router_metrics` (host:port) lists. Alerts look at the last
    seconds, and fire at once."""
    config = (MONITORING / "prometheus.yaml").read_text()
    config = config.replace("router.example:9100", router_metrics).replace("15s", "1s")
    (directory / "prometheus.yaml").write_text(config)
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    for rule in rules["groups"][0]["rules"]:
        rule["for"] = "0s"
        rule["expr"] = re.sub(r"\[\d+m\]", f"[{_WINDOW}]", rule["expr"])
    (directory / "alerts.yaml").write_text(yaml.safe_dump(rules))
    (port,) = free_ports(1)
    command = [
        "prometheus",
        f"--config.file={directory / 'prometheus.yaml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with subprocess.Popen(command) as process:
        try:
            yield Prometheus(port)
        finally:
            process.terminate()
