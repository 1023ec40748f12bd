"""What a real Prometheus sees of a live cluster: every panel has data, every alert fires in its
fault."""

from __future__ import annotations

import re
import urllib.error
from functools import partial
from pathlib import Path

import pytest

from tests.deploy.monitoring.faulty_cluster import (
    LARGE,
    SHORT,
    WRONG,
    FaultyCluster,
    faulty_cluster,
)
from tests.deploy.monitoring.prometheus import Prometheus, needs_prometheus, prometheus
from tests.deploy.monitoring.test_monitoring import ALERTS
from tests.until import wait_until
from twolane.deploy.monitoring.dashboard import ROWS

WITHIN_S = 90.0
MANY = (SHORT, SHORT, SHORT, WRONG)
QUERIES = {
    f"{panel.title}: {query.legend}": query.expression
    for panels in ROWS.values()
    for panel in panels
    for query in panel.queries
}
NAMES = {alert["alert"] for alert in ALERTS}
until = partial(wait_until, within_s=WITHIN_S, every_s=0.2)


class Alarms:
    """Which alerts have fired since the cluster was whole."""

    def __init__(self, scraper: Prometheus) -> None:
        self._scraper = scraper
        self.fired: set[str] = set()

    def until_fired(self, *names: str) -> None:
        assert {*names} <= NAMES
        until(lambda: self.have_fired(*names), f"{', '.join(names)} fire")

    def have_fired(self, *names: str) -> bool:
        self.fired |= self._scraper.alerts()
        return {*names} <= self.fired

    def none(self, *names: str) -> bool:
        return not self._scraper.alerts() & {*names}


@needs_prometheus
@pytest.mark.timeout(400)
def test_every_panel_has_data_and_every_alert_fires_in_its_fault(tmp_path: Path) -> None:
    """One cluster for all faults: each begins while the one before is over, or goes on."""
    with (
        faulty_cluster(tmp_path) as cluster,
        prometheus(cluster.its.status().metrics_endpoint, tmp_path) as scraper,
    ):
        alarms = Alarms(scraper)
        until(lambda: len(query(scraper, "up == 1")) == 3, "all are scraped")
        at_start = ("TwolaneProcessDown", "TwolaneNotServing")  # until the first scrape
        until(lambda: alarms.none(*at_start), "no alert fires")
        with cluster.asked(1, LARGE):
            alarms.until_fired("TwolanePagesFull")
        with cluster.asked(120, *MANY):
            alarms.until_fired("TwolaneQueue", "TwolaneOverloaded", "TwolaneSlowFirstToken")
            every_panel_has_data(scraper)
        everything_stops(cluster, alarms)
        with cluster.asked(120, *MANY):
            until(cluster.is_full, "there are rows to resume")
            with cluster.never_starting("decode-0"):
                alarms.until_fired(
                    "TwolaneRepeatedAttempts", "TwolanePoolShort", "TwolaneStartsFail"
                )
                with cluster.unmappable():
                    alarms.until_fired("TwolaneSlowTransport")
            cluster.store.kill()
            alarms.until_fired("TwolaneStoreDown")
        assert alarms.fired == NAMES


def everything_stops(cluster: FaultyCluster, alarms: Alarms) -> None:
    """First the controller, so that nobody proves what has ended."""
    with cluster.frozen(cluster.launcher):
        alarms.until_fired("TwolaneNoController")
        with cluster.asked(1, LARGE):
            until(lambda: stops_while_it_sends(cluster, alarms), "it is stopped amid a transfer")
        with (
            cluster.asked(120, *MANY),
            cluster.frozen(cluster.its.pid("prefill-0")),
            cluster.frozen(cluster.its.pid("decode-0")),
        ):
            alarms.until_fired("TwolaneNotServing", "TwolaneFailing")


def stops_while_it_sends(cluster: FaultyCluster, alarms: Alarms) -> bool:
    """Whether pages that the prefill worker may still write to are in quarantine: there are none if
    it sent the last one before it was stopped."""
    until(cluster.is_receiving, "a prompt's pages come")
    with cluster.frozen(cluster.its.pid("prefill-0")):
        alarms.until_fired("TwolaneProcessDown", "TwolaneWorkerSuspect")
        until(
            lambda: cluster.has_quarantined() or not cluster.is_receiving(),
            "nobody waits for those pages any more",
        )
        if not cluster.has_quarantined():
            return False
        alarms.until_fired("TwolanePagesInQuarantine")
        return True


def every_panel_has_data(scraper: Prometheus) -> None:
    missing = dict(QUERIES)

    def has_all() -> bool:
        for title in list(missing):
            if query(scraper, missing[title]):
                del missing[title]
        return not missing

    until(has_all, "every panel has data")
    for name in {name for alert in ALERTS for name in metrics_of(alert["expr"])}:
        until(partial(query, scraper, name), f"{name} has data")  # a scrape may take too long


def query(scraper: Prometheus, expression: str) -> list[dict[str, object]]:
    try:
        return scraper.query(expression)
    except urllib.error.URLError:  # it starts
        return []


def metrics_of(expression: str) -> set[str]:
    return set(re.findall(r"(?:twolane_|vllm:|up\b)[a-z_]*", expression))
