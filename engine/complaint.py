"""What makes a row's work impossible, whatever the engine: checked before anything is computed."""

from __future__ import annotations

from engine.step import EngineSpec, RowWork


def complaint(row: RowWork, spec: EngineSpec) -> str:
    """Why a row cannot be computed at all, or nothing."""
    end = row.start + row.n_new
    if end > spec.max_context_tokens:
        return f"{end} tokens exceed the context of {spec.max_context_tokens}"
    n_pages = -(-end // spec.page_tokens)
    if len(row.pages) < n_pages:
        return f"{end} tokens need {n_pages} pages, the row has {len(row.pages)}"
    pages = row.pages[:n_pages]
    if min(pages) < 0 or max(pages) >= spec.n_pages:
        return f"a page of the row is not of this pool of {spec.n_pages}"
    tokens = row.token_ids[row.start : min(end, row.n_known)]
    if len(tokens) and (min(tokens) < 0 or max(tokens) >= spec.vocab_size):
        return f"a token of the row is outside the vocabulary of {spec.vocab_size}"
    return ""
