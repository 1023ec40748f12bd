"""Names for prompt prefixes: one hash per full page, equal if all tokens up to its end are equal.

    root --> unit 0 --> unit 1 --> unit 2 --> unit 3        unit = 16 tokens, whatever the page size
                          |                     |
                    page 0 (32 tokens)    page 1            a page's name is the chain at its end

So pools with different page sizes agree on the name of every position where both end a page.
Routers use a faster hash (`twolane.router.dispatch.affinity`), since theirs is only a hint; pages
are shared by these names, so equal names must mean equal content. The index of cached pages, and
which page is evicted: `twolane.engine.allocator`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

UNIT_TOKENS = 16


def chain_hashes(
    token_ids: Sequence[int],
    page_tokens: int,
    *,
    fingerprint: str,
    adapter: str = "",
    tenant_salt: str = "",
) -> list[bytes]:
    """SHA-256 chain over model fingerprint, adapter, tenant salt and tokens: 32 bytes per full
    page.

    A partial last page has no name. `page_tokens` is a multiple of 16; ids fit 32 bits. Equal
    hashes mean equal inputs: the root encodes its fields with their lengths.
    """
    assert page_tokens >= UNIT_TOKENS, f"{page_tokens} tokens a page"
    assert page_tokens % UNIT_TOKENS == 0, f"{page_tokens} tokens a page"
    n_pages = len(token_ids) // page_tokens
    tokens = np.asarray(token_ids[: n_pages * page_tokens], dtype="<u4").tobytes()
    chain = _root(fingerprint, adapter, tenant_salt)
    unit_bytes, units_a_page = UNIT_TOKENS * 4, page_tokens // UNIT_TOKENS
    names: list[bytes] = []
    for unit in range(n_pages * units_a_page):
        at = unit * unit_bytes
        chain = hashlib.sha256(chain + tokens[at : at + unit_bytes]).digest()
        if (unit + 1) % units_a_page == 0:
            names.append(chain)
    return names


def _root(*fields: str) -> bytes:
    digest = hashlib.sha256(b"twolane prefix chain 1")
    for text in fields:
        raw = text.encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.digest()
