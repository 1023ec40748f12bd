"""What a row needs to start: all pages of its prompt, those of the prefix index first.

    prompt        |--- page ---|--- page ---|--- page ---|- part -|
                  |== cached, shared =======|== taken now =========|
                                            ^ computed from here

At least the last token is always computed: the first token of the answer is sampled from it. So the
page that it is in is never taken from the index.
"""

from __future__ import annotations

from twolane.worker.context import WorkerContext
from twolane.worker.role import Adopter
from twolane.worker.rows import Row, RowState


def try_start(row: Row, site: WorkerContext, adopter: Adopter | None, now: float) -> bool:
    """Give a WAITING row its pages and make it COMPUTING, or change nothing.

    `adopter`: the decode role that takes the row in the end, if that is here; room and growth are
    promised then too. Pages that are promised to other rows are left alone.
    """
    pages = site.pages
    cached = pages.match(row.prompt_hashes[: (row.n_given - 1) // row.spec.page_tokens])
    n_new = row.n_prompt_pages - len(cached)
    if adopter is None:
        taken = site.reserve.try_take_new(n_new)
    else:
        taken = pages.try_take(n_new) if adopter.can_adopt(row, n_new) else None
    if taken is None:
        pages.release(cached)
        return False
    row.pages = cached + taken
    row.n_computed = row.n_cached = len(cached) * row.spec.page_tokens
    row.times.started_s = now
    row.advance(RowState.COMPUTING)
    return True
