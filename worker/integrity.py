"""Consistency check of pages, rows, promises and transfers. Raises AssertionError."""

from __future__ import annotations

from collections import Counter

from twolane.engine.step import Page
from twolane.worker.context import WorkerContext
from twolane.worker.role import Roles


def check_integrity(context: WorkerContext, roles: Roles) -> None:
    """All invariants of one worker, which hold between any two events of its loop.

    Each page reference belongs to a row, to the receiver or to a deferred release; each pin to the
    sender; each quarantined page to the receiver; each promise to a row that is here.
    """
    pages = context.pages
    pages.check_integrity()
    rows = [row for role in roles.all for row in role.rows]
    owed: Counter[int] = Counter()
    for row in rows:
        row.check()
        owed.update(row.pages)
    owed.update(context.returns.held_pages)
    pinned: Counter[int] = Counter()
    quarantined = 0
    if roles.decode is not None:
        receiver = roles.decode.receiver
        receiver.check_integrity()
        owed.update(receiver.held_pages())
        quarantined = receiver.quarantined_pages
    if roles.prefill is not None:
        roles.prefill.sender.check_integrity()
        pinned = roles.prefill.sender.pinned_pages()
    for number in range(context.spec.n_pages):
        held, expected = pages.refs_of(Page(number)), owed[number]
        assert held == expected, f"page {number}: {held} references, {expected} accounted for"
    counts = pages.counts()
    assert counts.quarantined == quarantined, f"{counts}: {quarantined} wait for proof"
    only_pinned = [number for number in pinned if not owed[number]]
    assert counts.pinned == len(only_pinned), f"{counts}: {len(only_pinned)} are being sent"
    context.reserve.check_integrity()
    strays = set(context.reserve.holders) - {row.number for row in rows}
    assert not strays, f"pages are promised to rows that are over: {strays}"
