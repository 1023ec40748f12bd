"""Goodput of a cluster at many times its capacity.

`python -m benchmarks.cluster.overload` runs the bundled model (2 prefill, 2 decode workers) and a
client in C (`h2load`: Debian's nghttp2-client), which first floods another server and then the
cluster:

    1  capacity   answers a second with 64 clients that repeat their requests immediately
    2  beside     the same, while a bare server that refuses everything is flooded with ten times
                  that rate: the capacity that this machine leaves to the cluster
    3  overload   the cluster is flooded, with priorities -10, 0, 10 and deadlines none, 1, 3, 10 s;
                  ten probes a second, of priorities 100, 0, -10, from a process that waits for
                  no core (it stands for a client elsewhere; how late it is itself is in the result)
    4  after      the flood is over: when is a probe of priority 0 answered within a second again?

Goodput is the rate of complete answers within their deadlines, as the router counts them. An
admitted request that is displaced by a higher priority is not a refusal, and is counted separately.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import IO, Any

import click
import psutil

from benchmarks.cluster.flood import MIXED, find_h2load, flooded, saturated
from benchmarks.cluster.overload_probe import TIMEOUT_S, Probe
from benchmarks.results import save
from twolane.admin import AdminClient
from twolane.config import ClientConfig
from twolane.deploy.process.cpu_share import try_prefer
from twolane.testing import LocalCluster, start_local

AIMS = {
    "goodput_share": 0.85,
    "refusal_p99_ms": 100.0,
    "normal_again_s": 1.0,
    "memory_growth": 1.05,  # of the router: the flood's last third relative to its second
    "cancelled": 0,
    "without_details": 0,
    "starved": 0,
}
CLIENTS = 64
TIMES = 10.0
PROBER_NICE = -15
_QUIET_S = 5.0  # after the flood


@dataclass(frozen=True, slots=True)
class Overload:
    """See the module's docstring."""

    capacity_per_s: float
    beside_per_s: float
    goodput_per_s: float
    offered_per_s: float
    for_s: float
    probes: Sequence[Probe]
    flood_ended_s: float  # on the probes' clock
    rss_mb: Sequence[float]  # of the router, once a second
    counters: dict[str, int]  # of the router, during the flood

    @property
    def goodput_share(self) -> float:
        return self.goodput_per_s / self.beside_per_s

    def during(self) -> list[Probe]:
        return [probe for probe in self.probes if probe.at_s < self.flood_ended_s]

    def refusals_ms(self) -> list[float]:
        """Times of immediate refusals, sorted."""
        refused = [p for p in self.during() if p.code == "RESOURCE_EXHAUSTED" and not p.was_queued]
        return sorted(probe.took_s * 1e3 for probe in refused)

    def normal_again_s(self) -> float | None:
        """Seconds from the end of the flood to the first probe of priority 0 that was answered
        within a second and after which all were. None if there is none."""
        at_s = None
        for probe in sorted(self.probes, key=lambda probe: probe.at_s):
            if probe.priority == 0 and probe.at_s >= self.flood_ended_s:
                is_normal = probe.code == "OK" and probe.took_s < 1.0
                at_s = (at_s or probe.at_s) if is_normal else None
        return None if at_s is None else at_s - self.flood_ended_s

    def memory_growth(self) -> float:
        """The flood's last third relative to its second: 1 is flat. The first third fills the
        queue."""
        third = max(1, len(self.rss_mb) // 3)
        return median(self.rss_mb[-third:]) / median(self.rss_mb[-2 * third : -third])

    def starved(self) -> int:
        """Probes that ran into their own timeout instead of getting an earlier answer."""
        return sum(probe.took_s >= TIMEOUT_S for probe in self.probes)

    def failures(self) -> list[str]:
        """Which `AIMS` were missed, in words. Empty if none."""
        figures = self.figures()
        missed = [
            f"{name} is {figures[name]}; at most {AIMS[name]:g} is wanted"
            for name in AIMS
            if name != "goodput_share" and (figures[name] is None or figures[name] > AIMS[name])
        ]
        if self.goodput_share < AIMS["goodput_share"]:
            missed.append(f"goodput_share is {self.goodput_share:.3f}")
        codes = Counter(probe.code for probe in self.during() if probe.priority == 100)
        if set(codes) != {"OK"}:
            missed.append(f"of priority 100 not all were answered: {dict(codes)}")
        return missed

    def figures(self) -> dict[str, Any]:
        refusals = self.refusals_ms()
        by_priority = {}
        for priority in sorted({probe.priority for probe in self.probes}, reverse=True):
            mine = [probe for probe in self.during() if probe.priority == priority]
            first = sorted(p.first_s for p in mine if p.code == "OK" and p.first_s is not None)
            by_priority[str(priority)] = {
                "codes": dict(Counter(probe.code for probe in mine)),
                "first_token_p50_s": _rank(first, 0.5),
                "first_token_p99_s": _rank(first, 0.99),
            }
        return {
            "capacity_per_s": round(self.capacity_per_s, 2),
            "capacity_beside_flooded_refuser_per_s": round(self.beside_per_s, 2),
            "offered_per_s": round(self.offered_per_s, 1),
            "for_s": self.for_s,
            "goodput_per_s": round(self.goodput_per_s, 2),
            "goodput_share": round(self.goodput_share, 3),
            "refusal_p50_ms": _rank(refusals, 0.5),
            "refusal_p99_ms": _rank(refusals, 0.99),
            "prober_late_p99_ms": _rank(sorted(p.late_s * 1e3 for p in self.during()), 0.99),
            "refusals_probed": len(refusals),
            "refused_after_waiting": sum(
                p.code == "RESOURCE_EXHAUSTED" and p.was_queued for p in self.during()
            ),
            "without_details": sum(not probe.has_details for probe in self.probes),
            "cancelled": sum(probe.code == "CANCELLED" for probe in self.probes),
            "starved": self.starved(),
            "memory_growth": round(self.memory_growth(), 3),
            "probes_by_priority": by_priority,
            "normal_again_s": _rounded(self.normal_again_s()),
            "router_rss_mb": [
                round(mb, 1) for mb in self.rss_mb[:: max(1, len(self.rss_mb) // 20)]
            ],
            "router_counters": self.counters,
        }


def run(for_s: float, *, warm_s: float = 5.0, beside_s: float = 20.0) -> Overload:
    """All phases; takes `for_s` and about a minute."""
    with start_local(prefill=2, decode=2, device="cpu") as cluster, refuser() as (refusing, _):
        with saturated(cluster.endpoint, CLIENTS, warm_s + beside_s + 10):
            time.sleep(warm_s)
            capacity = _finished_per_s(cluster, beside_s)
        rate_per_s = TIMES * capacity
        with (
            flooded(refusing, MIXED, rate_per_s, beside_s + 10),
            saturated(cluster.endpoint, CLIENTS, beside_s + 10),
        ):
            time.sleep(warm_s)
            beside = _finished_per_s(cluster, beside_s)
        time.sleep(1.0)
        router = psutil.Process(cluster.pid("router-0"))
        with probing(cluster.endpoint) as probes:
            with flooded(cluster.endpoint, MIXED, rate_per_s, for_s + warm_s + 30):
                time.sleep(warm_s)
                before, began = _counters(cluster), time.monotonic()
                rss_mb = []
                while time.monotonic() - began < for_s:
                    time.sleep(1.0)
                    rss_mb.append(router.memory_info().rss / 1e6)
                took_s = time.monotonic() - began
                after = _counters(cluster)
                ended_s = time.monotonic()
            time.sleep(_QUIET_S)
        counters = {name: after[name] - before[name] for name in sorted(after)}
        return Overload(
            capacity_per_s=capacity,
            beside_per_s=beside,
            goodput_per_s=counters["finished"] / took_s,
            offered_per_s=rate_per_s,
            for_s=for_s,
            probes=probes,
            flood_ended_s=ended_s,
            rss_mb=rss_mb,
            counters={name: n for name, n in counters.items() if n},
        )


def _finished_per_s(cluster: LocalCluster, for_s: float) -> float:
    before, began = _counters(cluster)["finished"], time.monotonic()
    time.sleep(for_s)
    finished = _counters(cluster)["finished"] - before
    return finished / (time.monotonic() - began)


def _counters(cluster: LocalCluster) -> Counter[str]:
    with AdminClient(cluster.admin_endpoint, config=ClientConfig(call_timeout_s=30)) as admin:
        return Counter(admin.status().counters)


@contextmanager
def probing(endpoint: str) -> Iterator[list[Probe]]:
    """The list is filled when the block has ended."""
    probes: list[Probe] = []
    with tempfile.TemporaryFile("w+") as told:  # an unread pipe would fill up
        with _python("benchmarks.cluster.overload_probe", endpoint, stdout=told) as process:
            try_prefer(process.pid, PROBER_NICE)
            yield probes
            process.communicate()
        told.seek(0)
        probes.extend(Probe(**json.loads(line)) for line in told)


@contextmanager
def refuser() -> Iterator[tuple[str, int]]:
    """Yields its endpoint and its pid."""
    with _python("benchmarks.cluster.refusing_door") as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1], process.pid


@contextmanager
def _python(
    module: str, *arguments: str, stdout: int | IO[str] = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """Runs in a session of its own: Linux may divide cores among sessions, and the flood is in
    ours."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=stdout, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _rank(values: Sequence[float], share: float) -> float | None:
    if not values:
        return None
    return _rounded(values[min(len(values) - 1, int(share * len(values)))])


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


@click.command(help="Measure a cluster at ten times its capacity.")
@click.option("--for", "for_s", default=600.0, show_default=True, help="Seconds of overload.")
def main(for_s: float) -> None:
    if find_h2load() is None:
        raise click.ClickException("h2load is missing: install nghttp2 (Debian: nghttp2-client)")
    found = run(for_s)
    figures = found.figures()
    click.echo(json.dumps(figures, indent=1))
    click.echo("\n".join(found.failures()) or "all aims are met")
    click.echo(f"saved {save('overload', {'aims': AIMS, **figures})}")


if __name__ == "__main__":
    main()
