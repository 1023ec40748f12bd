"""The handshake of `twolane.engine.kernels.rows.all_reduce`, step by step in any order that cards
could take.

A model of it: every rank makes the same launches one after the other; the programs of a launch (one
a row) advance in any order, as far as their flags let them. What a program reads of a peer must be
what that peer wrote in the same launch. With one buffer instead of two it is not, and a schedule
shows that.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

ROWS = 3


class TornRead(AssertionError):
    """A program has read what belongs to another launch."""


class World:
    def __init__(self, ranks: int, buffers: int) -> None:
        self.ranks = ranks
        self.buffers = buffers
        self.flags = [[[0] * ranks for _ in range(ROWS)] for _ in range(ranks)]
        self.counts = [[0] * ROWS for _ in range(ranks)]
        self.held = [[[-1] * ROWS for _ in range(buffers)] for _ in range(ranks)]

    def program(self, rank: int, row: int, launch: int) -> Iterator[bool]:
        """One row's program; yields before each of its accesses whether it may go on."""
        count = self.counts[rank][row] + 1
        buffer = count % self.buffers
        yield True
        self.held[rank][buffer][row] = launch
        peers = [peer for peer in range(self.ranks) if peer != rank]
        for peer in peers:
            yield True
            self.flags[peer][row][rank] = count
        for peer in peers:
            while self.flags[rank][row][peer] < count:
                yield False
        for peer in peers:
            yield True
            if self.held[peer][buffer][row] != launch:
                raise TornRead(f"launch {launch}, row {row}: {rank} read {peer}'s too late")
        self.counts[rank][row] = count

    def card(self, rank: int, launches: list[int], source: random.Random) -> Iterator[bool]:
        """Launches of `launches[k]` rows in order: one has ended before the next begins."""
        for launch, rows in enumerate(launches):
            running = [self.program(rank, row, launch) for row in range(rows)]
            while running:
                program = source.choice(running)
                can_go_on = next(program, None)
                if can_go_on is None:
                    running.remove(program)
                else:
                    yield can_go_on


def play(seed: int, ranks: int, *, buffers: int) -> None:
    source = random.Random(seed)
    launches = [source.randint(1, ROWS) for _ in range(12)]
    world = World(ranks, buffers)
    cards = [world.card(rank, launches, source) for rank in range(ranks)]
    favoured, patience = source.randrange(ranks), 0
    while cards:
        # Now and then one card runs ahead of all others, as far as it can.
        card = cards[favoured % len(cards)] if source.random() < 0.7 else source.choice(cards)
        went_on = next(card, None)
        if went_on is None:
            cards.remove(card)
        patience = patience + 1 if went_on is False else 0
        assert patience < 10_000, "everybody waits"
        if source.random() < 0.05:
            favoured = source.randrange(ranks)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_no_schedule_reads_another_launchs_rows_or_waits_for_ever(ranks: int) -> None:
    for seed in range(300):
        play(seed, ranks, buffers=2)


def test_one_buffer_would_not_do() -> None:
    def torn(seed: int) -> bool:
        try:
            play(seed, 2, buffers=1)
        except TornRead:
            return True
        return False

    assert any(torn(seed) for seed in range(100))
