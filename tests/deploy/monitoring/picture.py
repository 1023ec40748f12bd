"""Draws docs/dashboard.png: `python -m tests.deploy.monitoring.picture`.

It has the panels of the dashboard with the data of a small cluster, which answers for a minute: a
decode worker is stopped for a while, then the other one is killed. Needs Debian's prometheus, and
matplotlib.
"""

from __future__ import annotations

import re
import signal
import time
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from tests.deploy.monitoring.asking import asking
from tests.deploy.monitoring.prometheus import Prometheus, prometheus
from twolane.deploy.monitoring.dashboard import ROWS
from twolane.testing import LocalCluster, start_local

PICTURE = Path(__file__).parents[3] / "docs" / "dashboard.png"
STOPPED_AT_S, BACK_AT_S, KILLED_AT_S, RUN_S = 15, 30, 45, 60
_COLUMNS = 3
_UNITS = {"s": "s", "Bps": "bytes/s", "reqps": "requests/s", "percentunit": "share", "short": ""}


def draw(scraper: Prometheus, since: float) -> None:
    """Draw all panels, from the Unix time `since` until now. What is 0 all the time is left out,
    unless all of a panel is."""
    panels = [panel for row in ROWS.values() for panel in row]
    lines = -(-len(panels) // _COLUMNS)
    figure, axes = plt.subplots(lines, _COLUMNS, figsize=(18, 2.4 * lines), layout="constrained")
    figure.supxlabel("seconds", fontsize=10)
    for panel, place in zip(panels, axes.flat, strict=True):
        unit = _UNITS[panel.unit]
        place.set_title(f"{panel.title}, {unit}" if unit else panel.title, fontsize=10, loc="left")
        place.tick_params(labelsize=8)
        drawn = []
        for query in panel.queries:
            for series in scraper.query_range(query.expression, since):
                name = query.legend
                for label in re.findall(r"{{(\w+)}}", name):
                    name = name.replace(f"{{{{{label}}}}}", series["metric"].get(label, ""))
                points = [(float(at) - since, float(y)) for at, y in series["values"]]
                drawn.append((name, points))
        moving = [each for each in drawn if any(y for _, y in each[1])]
        for name, points in moving or drawn:
            place.plot(*zip(*points, strict=True), label=name, linewidth=1.2)
        place.set_ylim(bottom=0)
        place.set_xlim(0, RUN_S)
        place.grid(alpha=0.3)
        place.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    figure.savefig(PICTURE, dpi=80)


def _cluster() -> AbstractContextManager[LocalCluster]:
    return start_local(
        engine="fake", prefill=1, decode=2, suspicion_s=2.0,
        autoscale=True, min_prefill=1, max_prefill=1, min_decode=2, max_decode=2,
    )  # fmt: skip


def main() -> None:
    with (
        TemporaryDirectory() as directory,
        _cluster() as cluster,
        prometheus(cluster.status().metrics_endpoint, Path(directory)) as scraper,
        asking(cluster),
    ):
        since = time.time()
        time.sleep(STOPPED_AT_S)
        cluster.kill("decode-0", signal.SIGSTOP)
        time.sleep(BACK_AT_S - STOPPED_AT_S)
        cluster.kill("decode-0", signal.SIGCONT)
        time.sleep(KILLED_AT_S - BACK_AT_S)
        cluster.kill("decode-1")
        time.sleep(RUN_S - KILLED_AT_S)
        draw(scraper, since)


if __name__ == "__main__":
    main()
