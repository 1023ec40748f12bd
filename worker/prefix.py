"""A row's pages and the prefix index of its worker."""

from __future__ import annotations

from engine.allocator import PageAllocator
from worker.rows import Row


def publish(row: Row, n_tokens: int, pages: PageAllocator) -> None:
    """Index the full pages among the row's first n_tokens: computed, and by a step that succeeded.

    May be called again with more. Pages whose content is indexed already stay private. An engine
    whose pages of answers are not those of a prompt of the same tokens has only prompts indexed.
    """
    assert n_tokens <= row.n_computed
    if not row.spec.indexes_answers:
        n_tokens = min(n_tokens, row.n_prompt)
    names = row.prompt_hashes if n_tokens == row.n_given else row.chain_hashes(n_tokens)
    for page, name in zip(row.pages, names, strict=False):
        pages.publish(page, name)
