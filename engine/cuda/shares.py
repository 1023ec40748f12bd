"""Splits a step into passes, and its positions between the two kinds of attention.

Usually there is one pass: rows with one new position use decode attention, the others are chunks.

In exact mode a position's bits must not depend on the step that computes it, and the two kinds of
attention sum in different orders. So prompts are always computed in chunks, and tokens of an answer
always one by one, even if an answer is resumed:

    0            n_prompt             n_tokens
    |-- pass 0 ---|- 1 -|- 2 -|- 3 ----|
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twolane.engine.step import RowWork


@dataclass(slots=True)  # made for every row of every step: frozen would take twice as long
class Share:
    """What one pass computes of row `nth` of the step: positions start to start + n_new."""

    nth: int
    work: RowWork
    start: int
    n_new: int

    @property
    def end(self) -> int:
        return self.start + self.n_new

    @property
    def samples(self) -> bool:
        return self.work.sample and self.end == self.work.n_tokens


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass: rows of one token each for decode attention, and chunks."""

    decode: list[Share]
    chunks: list[Share]

    @property
    def all(self) -> list[Share]:
        return self.decode + self.chunks


def split_passes(rows: Sequence[tuple[int, RowWork]], *, exact: bool, most_rows: int) -> list[Pass]:
    """The passes of a step, in order, each with at most most_rows rows; `rows` are (place in the
    step, work)."""
    passes: list[Pass] = []

    def at(i: int) -> Pass:
        while len(passes) <= i:
            passes.append(Pass([], []))
        return passes[i]

    for nth, work in rows:
        end = work.start + work.n_new
        if not exact:
            share = Share(nth, work, work.start, work.n_new)
            (at(0).decode if work.n_new == 1 else at(0).chunks).append(share)
            continue
        n_read = max(0, min(end, work.n_prompt) - work.start)
        if n_read:
            at(0).chunks.append(Share(nth, work, work.start, n_read))
        first = work.start + n_read
        for position in range(first, end):
            at(position - first + bool(n_read)).decode.append(Share(nth, work, position, 1))
    return [part for whole in passes for part in _cut(whole, most_rows)]


def _cut(whole: Pass, most_rows: int) -> list[Pass]:
    """Rows of one pass do not depend on each other, so they can be computed one after the other."""
    rows, n_decode = whole.all, len(whole.decode)
    return [
        Pass(rows[at : min(at + most_rows, n_decode)], rows[max(at, n_decode) : at + most_rows])
        for at in range(0, len(rows), most_rows)
    ]
