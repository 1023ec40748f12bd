"""Names of prefixes: independent of page size, dependent on everything else."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys

import pytest

from twolane.engine.prefix import chain_hashes

TOKENS = [random.Random(1).randrange(150_000) for _ in range(300)]


def test_pools_of_other_page_sizes_agree_where_both_end_a_page() -> None:
    small = chain_hashes(TOKENS, 16, fingerprint="m")
    large = chain_hashes(TOKENS, 64, fingerprint="m")
    odd = chain_hashes(TOKENS, 48, fingerprint="m")
    assert (len(small), len(large), len(odd)) == (18, 4, 6)
    assert large == small[3::4]
    assert odd == small[2::3]


def test_a_partial_page_has_no_name() -> None:
    assert chain_hashes(TOKENS[:15], 16, fingerprint="m") == []
    assert len(chain_hashes(TOKENS[:16], 16, fingerprint="m")) == 1


def test_one_token_changes_its_page_and_all_after_it() -> None:
    changed = list(TOKENS)
    changed[40] += 1
    before = chain_hashes(TOKENS, 16, fingerprint="m")
    after = chain_hashes(changed, 16, fingerprint="m")
    assert before[:2] == after[:2]
    assert not set(before[2:]) & set(after[2:])


def test_model_adapter_and_tenant_keep_prefixes_apart() -> None:
    roots = [
        {"fingerprint": "a"},
        {"fingerprint": "b"},
        {"fingerprint": "a", "adapter": "b"},
        {"fingerprint": "ab"},
        {"fingerprint": "a", "tenant_salt": "b"},
        {"fingerprint": "", "adapter": "a", "tenant_salt": "b"},
    ]
    names = {chain_hashes(TOKENS[:16], 16, **root)[0] for root in roots}
    assert len(names) == len(roots)


def test_the_chain_is_what_its_docstring_says() -> None:
    chain = hashlib.sha256(b"twolane prefix chain 1")
    for text in ("m", "", "s"):
        chain.update(len(text).to_bytes(8, "little") + text.encode())
    unit = b"".join(token.to_bytes(4, "little") for token in TOKENS[:16])
    expected = hashlib.sha256(chain.digest() + unit).digest()
    assert chain_hashes(TOKENS[:16], 16, fingerprint="m", tenant_salt="s") == [expected]


def test_a_page_size_that_is_no_multiple_of_16_is_refused() -> None:
    with pytest.raises(AssertionError, match="24 tokens a page"):
        chain_hashes(TOKENS, 24, fingerprint="m")


@pytest.mark.parametrize("module", ["step", "allocator", "prefix", "fake"])
def test_bookkeeping_never_loads_torch(module: str) -> None:
    code = f"import sys, engine.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
