"""Does everything add up: pages, rows, promises, transfers. Raises AssertionError when not."""

from __future__ import annotations

from collections import Counter

from twolane.engine.step import Page
from twolane.worker.context import WorkerContext
from twolane.worker.role import Roles


def check_integrity(site: WorkerContext, roles: Roles) -> None:
    """Every law of the books of one worker, at any moment between two events of its loop.

    Each reference to a page is a row's, the receiver's, or on its way back; each pin the sender's;
    each page in quarantine the receiver's; promises belong to rows that are here.
    """
    pages = site.pages
    pages.check_integrity()
    rows = [row for role in roles.all for row in role.rows]
    owed: Counter[int] = Counter()
    for row in rows:
        row.check()
        owed.update(row.pages)
    owed.update(site.returns.held_pages)
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
    for number in range(site.spec.n_pages):
        held, expected = pages.refs_of(Page(number)), owed[number]
        assert held == expected, f"page {number}: {held} references, {expected} accounted for"
    counts = pages.counts()
    assert counts.quarantined == quarantined, f"{counts}: {quarantined} wait for proof"
    only_pinned = [number for number in pinned if not owed[number]]
    assert counts.pinned == len(only_pinned), f"{counts}: {len(only_pinned)} are being sent"
    site.reserve.check_integrity()
    strays = set(site.reserve.holders) - {row.number for row in rows}
    assert not strays, f"pages are promised to rows that are over: {strays}"
