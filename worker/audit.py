"""Does everything add up: pages, rows, promises, transfers. Raises AssertionError when not."""

from __future__ import annotations

from collections import Counter

from engine.step import Page
from worker.role import Roles
from worker.site import Site


def check_integrity(site: Site, roles: Roles) -> None:
    """Every law of the books of one worker, at any moment between two events of its loop.

    Each reference to a page is a row's or, while transfers come in, the receiver's; promises belong
    to rows that are here; where nothing is going on, no page is used, pinned or quarantined.
    """
    site.pages.check_integrity()
    rows = [row for role in roles.all for row in role.rows]
    owed: Counter[Page] = Counter()
    for row in rows:
        row.check()
        owed.update(row.pages)
    receiving = roles.decode is not None and bool(roles.decode.receiver.keys())
    for number in range(site.spec.n_pages):
        page = Page(number)
        held, expected = site.pages.refs_of(page), owed[page]
        is_ok = held >= expected if receiving else held == expected
        assert is_ok, f"page {page}: {held} references, {expected} accounted for"
    strays = {row.number for row in site.reserve.holders()} - {row.number for row in rows}
    assert not strays, f"pages are promised to rows that are over: {strays}"
    counts = site.pages.counts()
    if not rows and not receiving:
        assert counts.used == 0, f"idle, yet {counts.used} pages are used"
    if roles.prefill is None or not roles.prefill.sender.keys():
        assert counts.pinned == 0, f"nothing is sent, yet {counts.pinned} pages are pinned"
