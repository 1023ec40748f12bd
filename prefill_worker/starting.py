"""What a row needs to start: all pages of its prompt, cached ones first.

    prompt        |--- page ---|--- page ---|--- page ---|- part -|
                  |== cached, shared =======|== taken now =========|
                                            ^ computed from here

The last token is always computed, since the first token of the answer is sampled from it. The page
it is in is therefore never taken from the prefix index.
"""

from __future__ import annotations

from twolane.worker.context import WorkerContext
from twolane.worker.role import Adopter
from twolane.worker.rows import Row, RowState


def try_start(row: Row, context: WorkerContext, adopter: Adopter | None, now: float) -> bool:
    """Assign pages to a WAITING row and make it COMPUTING, or change nothing.

    `adopter`: the decode role that will take the row over, if it is on this worker; it then also
    promises room in the batch and pages for growth. Pages promised to other rows are not taken.
    """
    pages = context.pages
    cached = pages.match(row.prompt_hashes[: (row.n_input - 1) // row.spec.page_tokens])
    n_new = row.n_prompt_pages - len(cached)
    if adopter is None:
        taken = context.reserve.try_take_new(n_new)
    else:
        taken = pages.try_take(n_new) if adopter.try_promise(row, n_new) else None
    if taken is None:
        pages.release(cached)
        return False
    row.pages = cached + taken
    row.n_computed = row.n_cached = len(cached) * row.spec.page_tokens
    row.times.started_s = now
    row.advance(RowState.COMPUTING)
    return True
