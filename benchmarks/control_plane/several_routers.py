"""What several routers behind one port stream, in relation to one.

    python -m benchmarks.control_plane.several_routers     a machine of 16 cores or more

    scripted workers, flat out ──> router 0 ──┐
    scripted workers, flat out ──> router 1 ──┴─ one port ── clients in several processes

by HTTP, with a connection a stream, and by the SDK, with one client a process. Each router has
workers of its own, so that the routers are what bounds the rate; `cpu_share` shows whether they do:
1 is a core. A router that is behind puts several tokens of an answer into one event, one router and
several alike. The best of the rounds counts: what else the machine does can only slow them down.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import click

from benchmarks.control_plane.router_process import start_routers
from benchmarks.control_plane.token_client import ClientConfig
from benchmarks.control_plane.token_cost import started
from benchmarks.results import save

AIM = 3.5  # of four routers
ROUTERS = (1, 2, 4)
WAYS = ("http", "sdk")
STREAMS = 256
SETTLE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One window, of all routers together."""

    tokens_per_s: float
    tokens_per_cpu_s: float
    cpu_share: Sequence[float]  # of each router
    share_of_tokens: Sequence[float]  # that each router streamed


def measure(way: str, n_routers: int, *, streams: int, clients: int, window_s: float) -> Rate:
    """`streams` of all `clients` processes together."""
    with start_routers(n_routers, 0.0) as routers, ExitStack() as crews:
        first = routers[0]
        config = ClientConfig(
            way=way,
            endpoint=first.http_endpoint if way == "http" else first.endpoint,
            streams=streams // clients,
            flavour="plain",
            max_tokens=60_000,
        )
        for _ in range(clients):
            crews.enter_context(started(config))
        time.sleep(SETTLE_S)
        tokens = [router.n_tokens() for router in routers]
        cpu_s, began = [router.cpu_s for router in routers], time.monotonic()
        time.sleep(window_s)
        wall_s = time.monotonic() - began
        cpu_s = [router.cpu_s - before for router, before in zip(routers, cpu_s, strict=True)]
        tokens = [
            router.n_tokens() - before for router, before in zip(routers, tokens, strict=True)
        ]
    return Rate(
        tokens_per_s=round(sum(tokens) / wall_s),
        tokens_per_cpu_s=round(sum(tokens) / sum(cpu_s)),
        cpu_share=[round(spent_s / wall_s, 2) for spent_s in cpu_s],
        share_of_tokens=[round(n / sum(tokens), 3) for n in tokens],
    )


@click.command(help="Measure what several routers behind one port stream.")
@click.option("--way", "ways", multiple=True, type=click.Choice(WAYS), default=WAYS)
@click.option("--routers", "counts", multiple=True, type=int, default=ROUTERS)
@click.option("--streams", default=STREAMS, show_default=True)
@click.option("--clients", default=16, show_default=True, help="Processes.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--window-s", default=4.0, show_default=True)
def main(
    ways: Sequence[str],
    counts: Sequence[int],
    streams: int,
    clients: int,
    rounds: int,
    window_s: float,
) -> None:
    figures: dict[str, Any] = {}
    for way in ways:
        best: dict[int, Rate] = {}
        for nth in range(rounds * len(counts)):
            n = counts[nth % len(counts)]
            rate = measure(way, n, streams=streams, clients=clients, window_s=window_s)
            click.echo(f"{way}, {n} routers: {rate}")
            best[n] = max(best.get(n, rate), rate, key=lambda rate: rate.tokens_per_s)
        figures[way] = {
            str(n): {
                **asdict(rate),
                "times_one": round(rate.tokens_per_s / best[min(best)].tokens_per_s, 2),
            }
            for n, rate in sorted(best.items())
        }
    settings = {"streams": streams, "clients": clients, "rounds": rounds, "window_s": window_s}
    path = save("several_routers", {"aim_of_four": AIM, "settings": settings, "ways": figures})
    click.echo(f"saved {path}")


if __name__ == "__main__":
    main()
