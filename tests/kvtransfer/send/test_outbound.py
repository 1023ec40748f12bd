"""What a row that is to be moved says of itself."""

from __future__ import annotations

import pytest

from twolane.kvtransfer.send.outbound import OutRow

HASHES = [bytes([n]) for n in range(13)]  # one every 16 tokens


@pytest.mark.parametrize(
    ("page_tokens", "expected"),
    [(16, HASHES), (32, HASHES[1::2]), (64, [HASHES[3], HASHES[7], HASHES[11]]), (24, [])],
)
def test_a_receiver_is_told_one_hash_for_each_of_its_full_pages(
    page_tokens: int, expected: list[bytes]
) -> None:
    row = OutRow(n_tokens=215, n_pages=4, prefix_hashes=HASHES, hash_tokens=16, priority=0)
    assert list(row.page_hashes(page_tokens)) == expected
