"""A row's pages and the prefix index of its worker."""

from __future__ import annotations

from engine.allocator import PageAllocator
from worker.rows import Row


def publish(row: Row, n_tokens: int, pages: PageAllocator) -> None:
    """Index the full pages among the row's first n_tokens: computed, and by a step that succeeded.

    May be called again with more. Pages whose content is indexed already stay private.
    """
    assert n_tokens <= row.n_computed
    names = row.prompt_hashes if n_tokens == row.n_given else row.chain_hashes(n_tokens)
    for page, name in zip(row.pages, names, strict=False):
        pages.publish(page, name)
