"""The time to the first token while the routers' shared store is in trouble.

`python -m benchmarks.control_plane.store_faults` starts two routers with a fake engine and asks
them steadily. Meanwhile their store, a Valkey, is killed and started again, stopped for 30 s
(SIGSTOP), emptied, and replaced by an old file of its own. Then the store is Debian's redis-server
with a replica and three sentinels: the master is killed, and the replica takes over. A request that
fails ends the program.

Before each trouble the same requests are asked while all is well, because machines differ from
minute to minute: `p99_later_ms` is how much later the 99th percentile comes with the trouble than
just before it, the median of the rounds.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.result_options import result_options
from benchmarks.results import save
from tests.redis_servers import RedisServer, Watched, debians_server, redis_server, watched
from twolane import AsyncClient
from twolane.testing import LocalCluster, start_local

RATE_PER_S, N_TOKENS = 40.0, 4
STOPPED_S = 30.0
Trouble = Callable[[float], Awaitable[None]]


async def first_tokens_ms(cluster: LocalCluster, for_s: float) -> list[float]:
    """Of requests that are asked at a steady pace."""
    took: list[float] = []
    async with AsyncClient(cluster.endpoint) as client, asyncio.TaskGroup() as tasks:

        async def one() -> None:
            began = time.monotonic()
            stream = client.stream(token_ids=[7] * 32, max_tokens=N_TOKENS)
            await anext(stream)
            took.append(1000 * (time.monotonic() - began))
            await stream.completion()

        until = time.monotonic() + for_s
        while time.monotonic() < until:
            tasks.create_task(one())
            await asyncio.sleep(1 / RATE_PER_S)
    return took


class Troubles:
    """What is done to a single server. Each returns when the trouble is over."""

    def __init__(self, redis: RedisServer, folder: Path) -> None:
        self._redis = redis
        self._folder = folder

    async def none(self, for_s: float) -> None:
        await asyncio.sleep(for_s)

    async def killed(self, for_s: float) -> None:
        self._redis.kill()
        await asyncio.sleep(for_s / 2)
        await asyncio.to_thread(self._redis.start)
        await asyncio.sleep(for_s / 2)

    async def stopped(self, for_s: float) -> None:
        with self._redis.stopped():
            await asyncio.sleep(for_s)

    async def flushed(self, for_s: float) -> None:
        for _ in range(int(for_s)):
            await asyncio.to_thread(self._redis.command, "FLUSHALL")
            await asyncio.sleep(1.0)

    async def old_file(self, for_s: float) -> None:
        await asyncio.to_thread(self._redis.command, "SAVE")
        (dump,) = self._folder.rglob("*.rdb")
        old = dump.with_suffix(".old")
        shutil.copy(dump, old)
        await asyncio.sleep(for_s / 2)
        self._redis.kill()
        shutil.copy(old, dump)
        await asyncio.to_thread(self._redis.start)
        await asyncio.sleep(for_s / 2)


class Failover:
    """The master is killed, and its replica takes over. `took_s` is how long each takeover took."""

    def __init__(self, pair: Watched) -> None:
        self._pair = pair
        self.took_s: list[float] = []

    async def __call__(self, for_s: float) -> None:
        await asyncio.sleep(for_s / 4)
        began = time.monotonic()
        await asyncio.to_thread(self._pair.fail_over)
        self.took_s.append(round(time.monotonic() - began, 2))
        await asyncio.sleep(for_s * 3 / 4)  # so that the routers find the new master


async def measure(cluster: LocalCluster, name: str, trouble: Trouble, for_s: float) -> list[float]:
    """Calm, then trouble, a second longer than it lasts. Returns the 99th percentile in calm; the
    median and the 99th percentile in trouble; and how many there were, in milliseconds."""
    calm = await first_tokens_ms(cluster, for_s)
    took, _ = await asyncio.gather(first_tokens_ms(cluster, for_s + 1.0), trouble(for_s))
    found = [*np.quantile(calm, [0.99]), *np.quantile(took, [0.5, 0.99]), len(took)]
    click.echo(f"{name:20} " + "  ".join(f"{value:.1f}" for value in found))
    return [float(value) for value in found]


def summary(rounds: list[list[float]]) -> dict[str, Any]:
    """Of what `measure` returned in each round: the medians."""
    calm, p50, p99, n = zip(*rounds, strict=True)
    later = [in_trouble - before for before, in_trouble in zip(calm, p99, strict=True)]
    return {
        "n": int(sum(n)),
        "p50_ms": round(statistics.median(p50), 1),
        "p99_ms": round(statistics.median(p99), 1),
        "p99_calm_ms": round(statistics.median(calm), 1),
        "p99_later_ms": round(statistics.median(later), 1),
        "p99_later_ms_each": [round(value, 1) for value in later],
    }


def single_server(folder: Path, for_s: float, n_rounds: int) -> dict[str, Any]:
    """All troubles of one server."""
    rounds: dict[str, list[list[float]]] = {}
    with (
        redis_server(folder) as redis,
        start_local(engine="fake", routers=2, store=redis.url) as cluster,
    ):
        troubles = Troubles(redis, folder)
        plan: list[tuple[str, Trouble, float]] = [
            ("none", troubles.none, for_s),
            ("killed, started again", troubles.killed, 2 * for_s),
            ("stopped", troubles.stopped, STOPPED_S),
            ("flushed each second", troubles.flushed, for_s),
            ("old file", troubles.old_file, for_s),
        ]
        for _ in range(n_rounds):
            for name, trouble, its_s in plan:
                found = asyncio.run(measure(cluster, name, trouble, its_s))
                rounds.setdefault(name, []).append(found)
    return {name: summary(found) for name, found in rounds.items()}


def watched_servers(folder: Path, for_s: float, n_rounds: int) -> dict[str, Any]:
    """As many failovers, back and forth."""
    rounds: list[list[float]] = []
    with (
        watched(folder, debians_server()) as pair,
        start_local(engine="fake", routers=2, store=pair.url) as cluster,
    ):
        failover = Failover(pair)
        for _ in range(n_rounds):
            rounds.append(asyncio.run(measure(cluster, "failed over", failover, for_s)))
            pair.bring_back()
    return {"failed over": summary(rounds) | {"takeover_s_each": failover.took_s}}


@click.command(help="Measure first tokens while the shared store is in trouble.")
@click.option("--for-s", default=10.0, show_default=True, help="Length of most troubles.")
@click.option("--rounds", "n_rounds", default=1, show_default=True, help="Of each trouble.")
@click.option("--failovers", "n_failovers", default=3, show_default=True)
@result_options("store_faults")
def main(
    for_s: float, n_rounds: int, n_failovers: int, name: str, folder: Path, commit: str | None
) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        if n_rounds:
            figures |= single_server(Path(scratch) / "one", for_s, n_rounds)
        if n_failovers:
            figures |= watched_servers(Path(scratch) / "pair", for_s, n_failovers)
    document = {"requests_per_s": RATE_PER_S, "first_token": figures}
    path = save(name, document, folder=folder, commit=commit)
    click.echo(f"saved {path}")


if __name__ == "__main__":
    main()
