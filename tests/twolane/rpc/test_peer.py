from __future__ import annotations

import pytest

from twolane.rpc.peer import peer_of


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", ""),
        ("127.9.9.9", ""),
        ("::1", ""),
        ("::ffff:127.0.0.1", ""),
        ("", ""),
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_who_counts_as_one_peer(host: str, expected: str) -> None:
    assert peer_of(host) == expected
