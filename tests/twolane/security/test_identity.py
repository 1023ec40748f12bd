"""Identities, as certificates carry them."""

from __future__ import annotations

import pytest

from twolane.security.identity import Identity, Role, parse_identity

IDENTITIES = [
    Identity(Role.ROUTER, "router-0"),
    Identity(Role.WORKER, "decode-0"),
    Identity(Role.VIEWER, "prometheus"),
    Identity(Role.CLIENT, "alice", "acme"),
]


@pytest.mark.parametrize("identity", IDENTITIES, ids=str)
def test_an_identity_survives_a_certificate(identity: Identity) -> None:
    assert parse_identity(identity.uri) == parse_identity(str(identity)) == identity


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("worker", "it must be worker/NAME"),
        ("worker/", "it must be worker/NAME"),
        ("worker/a/b", "it must be worker/NAME"),
        ("worker/../b", "it must be worker/NAME"),
        ("worker/a b", "letters, digits"),
        ("client/alice", "it must be client/TENANT/NAME"),
        ("local/x", "'local' is not a role"),
        ("root/x", "'root' is not a role"),
        ("spiffe://elsewhere/worker/a", "'spiffe:' is not a role"),
        ("", "'' is not a role"),
    ],
)
def test_what_is_no_identity_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_identity(text)
