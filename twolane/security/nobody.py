"""The certificate of callers who have none of their own.

A gRPC server either requires a client certificate or requests none. A door that accepts
certificates and API keys requires one, and callers without their own present this one. All
have it: its key below is public, and it names no identity. It is not an authority's certificate, so
it can sign no other.
"""

from __future__ import annotations

CERT = b"""\
-----BEGIN CERTIFICATE-----
MIIBbjCCAROgAwIBAgIUMFGi7gmVKICgh0Olbt2Q/S6KsTEwCgYIKoZIzj0EAwIw
GjEYMBYGA1UEAwwPdHdvbGFuZTogbm9ib2R5MCAXDTIwMDEwMTAwMDAwMFoYDzIx
MjAwMTAxMDAwMDAwWjAaMRgwFgYDVQQDDA90d29sYW5lOiBub2JvZHkwWTATBgcq
hkjOPQIBBggqhkjOPQMBBwNCAASauFOqTxKU20gf3768za7YXkLqbF+xZ3XpxO8O
QIpXWmV92dpGhkSECJfvw3opv9wi3TUWwRuueQzVvPbFr/czozUwMzAMBgNVHRMB
Af8EAjAAMA4GA1UdDwEB/wQEAwIHgDATBgNVHSUEDDAKBggrBgEFBQcDAjAKBggq
hkjOPQQDAgNJADBGAiEAoUchQda8ym3Y+8b429lTUvImZCoYS2O4qhoXr9Mz8tQC
IQCqki0F9ADhYP+GXnA87ZeVxwc/qaWqr/Rtf6jgKqYQ7A==
-----END CERTIFICATE-----
"""

KEY = b"""\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgJfHfB/rk3pOIpwID
22QVtf9y21AXhS9lS9FOTwz+6aqhRANCAASauFOqTxKU20gf3768za7YXkLqbF+x
Z3XpxO8OQIpXWmV92dpGhkSECJfvw3opv9wi3TUWwRuueQzVvPbFr/cz
-----END PRIVATE KEY-----
"""


def is_nobody(cert: bytes) -> bool:
    """Whether `cert`, a caller's certificate as PEM from gRPC, is this one."""
    return cert == CERT
