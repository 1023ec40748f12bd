"""Prefix cache hit rates of the router's placement, of random placement and of an oracle.

`python -m benchmarks.control_plane.prefix_affinity` replays a synthetic trace of conversations
(several turns each, 40 shared system prompts, a mean input of 12 thousand tokens) to prefill
workers with ideal LRU caches of 500 thousand tokens. The router only knows what it sent where
(`twolane.router.dispatch.affinity`), the oracle reads the caches; both weigh cached tokens against
the backlog as `twolane.router.dispatch.policy` does.

With several routers each request goes to any of them. A router knows its own prompts at once, and
the others' backlog by the workers' reports. Of the others' prefixes it knows what they write to a
shared store, a moment later, or nothing.
"""

from __future__ import annotations

import random
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import click

from benchmarks.results import save
from twolane.router.dispatch.affinity import (
    BLOCK_TOKENS,
    COARSE_BLOCK_TOKENS,
    N_FINE_BLOCKS,
    PrefixAffinity,
)

POOL_TOKENS = 500_000
SPEED_TOKENS_PER_S = 20_000.0
BACKLOG_TOKENS = 32_768  # a worker with more gets nothing new
AIMS = {4: 0.44, 16: 0.49}  # hit rate by number of prefill workers
REPORT_S = 0.05  # how old a worker's report may be
STORE_S = 0.02  # until what one router writes is known to the others


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: its time, and its prompt as names of prefixes, one per 512 tokens."""

    at_s: float
    chain: tuple[int, ...]

    @property
    def n_tokens(self) -> int:
        return len(self.chain) * COARSE_BLOCK_TOKENS

    def hashes(self) -> array[int]:
        """As from `prefix_hashes`: finer blocks at first."""
        fine = COARSE_BLOCK_TOKENS // BLOCK_TOKENS
        n_fine = N_FINE_BLOCKS // fine
        names = [name + part for name in self.chain[:n_fine] for part in range(fine)]
        return array("Q", [*names, *self.chain[n_fine:]])


def conversations(n_turns: int, rate_per_s: float, seed: int = 5) -> list[Turn]:
    """Three of four turns continue a conversation, the others start a new one."""
    rng = random.Random(seed)
    n_blocks, at_s = 0, 0.0

    def fresh(count: int) -> list[int]:
        nonlocal n_blocks
        n_blocks += count
        return list(range(n_blocks - count, n_blocks))

    systems = [fresh(rng.choice((1, 2, 4, 8))) for _ in range(40)]
    running: list[list[int]] = []
    turns = []
    for _ in range(n_turns):
        at_s += rng.expovariate(rate_per_s)
        if running and rng.random() < 0.55:
            late = 1 - rng.random() ** 2 * 0.999
            blocks = running[int(len(running) * late) - 1]
            blocks += fresh(max(1, int(rng.lognormvariate(0.9, 0.9))))
        else:
            own = max(1, min(200, int(rng.lognormvariate(2.3, 1.1))))
            blocks = systems[int(40 * rng.random() ** 3)] + fresh(own)
            running = [*running[-399:], blocks]
        turns.append(Turn(at_s, _chain(blocks[:240])))
    return turns


def _chain(blocks: Sequence[int]) -> tuple[int, ...]:
    names, name = [], 0
    for block in blocks:
        name = hash((name, block)) & (2**60 - 1)
        names.append(name)
    return tuple(names)


class Cache:
    """One worker's prefix cache, with LRU eviction."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, None] = OrderedDict()

    def peek(self, chain: Sequence[int]) -> int:
        """How many tokens of its prefix are cached."""
        n_known = 0
        for name in chain:
            if name not in self._known:
                break
            n_known += 1
        return n_known * COARSE_BLOCK_TOKENS

    def use(self, chain: Sequence[int]) -> int:
        """The same; afterwards the whole chain is cached."""
        n_tokens = self.peek(chain)
        for name in reversed(chain):
            self._known[name] = None
            self._known.move_to_end(name)
        while len(self._known) > POOL_TOKENS // COARSE_BLOCK_TOKENS:
            self._known.popitem(last=False)
        return n_tokens


class Knowledge:
    """What one router knows: where prefixes were put, and what it has put on each worker."""

    def __init__(self, n_workers: int) -> None:
        self.affinity = PrefixAffinity()
        self.given = [0] * n_workers  # ties: the worker that got work longest ago, as in the router
        self.ours: list[list[tuple[float, float]]] = [[] for _ in range(n_workers)]
        self._heard: list[tuple[float, array[int], int]] = []  # of other routers, when it is known

    def hear(self, at_s: float, hashes: array[int], worker: int) -> None:
        self._heard.append((at_s, hashes, worker))

    def catch_up(self, now_s: float) -> None:
        while self._heard and self._heard[0][0] <= now_s:
            _, hashes, worker = self._heard.pop(0)
            self.affinity.record(hashes, worker)

    def own_since(self, worker: int, since_s: float) -> float:
        """Seconds of work that it has put there since then."""
        self.ours[worker] = [one for one in self.ours[worker] if one[0] > since_s]
        return sum(work_s for _, work_s in self.ours[worker])


def hit_rate(
    turns: Sequence[Turn],
    n_workers: int,
    policy: str,
    n_routers: int = 1,
    *,
    has_store: bool = True,
) -> float:
    """The share of all prompt tokens that were cached."""
    caches = [Cache() for _ in range(n_workers)]
    routers = [Knowledge(n_workers) for _ in range(n_routers)]
    free_at_s = [0.0] * n_workers
    reports: list[tuple[float, list[float]]] = [(0.0, list(free_at_s))]  # as workers made them
    rng = random.Random(1)
    n_hit = n_all = 0
    for number, turn in enumerate(turns, start=1):
        router = rng.choice(routers)
        wait_s = max(0.0, min(free_at_s) - turn.at_s - BACKLOG_TOKENS / SPEED_TOKENS_PER_S)
        now_s = turn.at_s + wait_s  # if backlogs are full, the queue's head waits
        router.catch_up(now_s)
        while len(reports) > 1 and reports[1][0] <= now_s - REPORT_S:
            del reports[0]
        told_at_s, told = (now_s, free_at_s) if n_routers == 1 else reports[0]
        known = [
            at_s + (router.own_since(n, told_at_s) if n_routers > 1 else 0.0)
            for n, at_s in enumerate(told)
        ]
        backlog = [max(0.0, at_s - now_s) * SPEED_TOKENS_PER_S for at_s in known]
        hashes = turn.hashes()
        cached: dict[int, int] = {}
        if policy == "router":
            cached = router.affinity.lookup(hashes)
        elif policy == "oracle":
            cached = {n: cache.peek(turn.chain) for n, cache in enumerate(caches)}
        ready = [n for n in range(n_workers) if backlog[n] <= BACKLOG_TOKENS] or [
            min(range(n_workers), key=lambda n: backlog[n])
        ]
        if policy == "random":
            rng.shuffle(ready)
            router.given = [0] * n_workers
        given = router.given
        worker = min(ready, key=lambda n: (backlog[n] - cached.get(n, 0), given[n]))
        given[worker] = number
        router.affinity.record(hashes, worker)
        for other in routers if has_store else ():
            if other is not router:
                other.hear(now_s + STORE_S, hashes, worker)
        n_cached = caches[worker].use(turn.chain)
        n_hit += n_cached
        n_all += turn.n_tokens
        left = max(1, turn.n_tokens - n_cached)
        work_s = left / SPEED_TOKENS_PER_S
        free_at_s[worker] = max(free_at_s[worker], now_s) + work_s
        router.ours[worker].append((now_s, work_s))
        reports.append((now_s, list(free_at_s)))
    return n_hit / n_all


@click.command(help="Simulate how often prompts meet their cached beginnings.")
@click.option("--turns", "n_turns", default=2_000, show_default=True)
def main(n_turns: int) -> None:
    figures: dict[str, dict[str, float]] = {}
    for n_workers, aim in AIMS.items():
        turns = conversations(n_turns, rate_per_s=3.0 * n_workers / 4)
        rates = {name: hit_rate(turns, n_workers, name) for name in ("random", "router", "oracle")}
        for name, has_store in (("3 routers", True), ("3 routers without a store", False)):
            rates[name] = hit_rate(turns, n_workers, "router", 3, has_store=has_store)
        figures[str(n_workers)] = {name: round(rate, 4) for name, rate in rates.items()}
        told = ", ".join(f"{name} {rate:.1%}" for name, rate in rates.items())
        click.echo(f"{n_workers} prefill workers: {told} (aim {aim:.0%})")
    path = save("prefix_affinity", {"turns": n_turns, "hit_rate_by_prefill_workers": figures})
    click.echo(f"saved {path}")


if __name__ == "__main__":
    main()
