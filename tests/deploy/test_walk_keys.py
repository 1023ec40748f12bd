"""The walk at a clients' door that asks for API keys, beyond the loopback, over TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.deploy.walk_calls import code_of, context_of
from tests.deploy.walk_tables import HTTP, IN, LISTENERS, all_methods
from tests.deploy.walked import Served, cluster
from tests.pki import FAR, Pki, far_is_far
from twolane import AsyncClient
from twolane.config import ClientConfig
from twolane.security import nobody
from twolane.security.identity import Role
from twolane.security.key_edit import create_key, revoke_key
from twolane.security.tls import server_name

HERE = LISTENERS["clients"]
CALLERS = ("no key", "wrong key", "malformed key", "another scheme", "revoked key", "client")


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    """Authorization headers by caller; `other` is a client of another tenant."""
    path = tmp_path / "keys.yaml"
    client, _ = create_key(path, "acme")
    other, _ = create_key(path, "umbrella")
    revoked, key = create_key(path, "acme")
    revoke_key(path, key.id)
    return {
        "wrong key": f"Bearer {client[:-1]}x",
        "malformed key": "Bearer open-sesame",
        "another scheme": f"Basic {client}",
        "revoked key": f"Bearer {revoked}",
        "client": f"Bearer {client}",
        "other": f"Bearer {other}",
    }


@pytest.fixture
async def served(
    pki: Pki, keys: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Served]:
    far_is_far(monkeypatch)
    async with cluster(tmp_path, FAR, pki, keys=tmp_path / "keys.yaml") as served:
        yield served


async def test_every_method_wants_a_key_that_counts(
    served: Served, pki: Pki, keys: dict[str, str]
) -> None:
    credentials = grpc.ssl_channel_credentials(pki.ca.read_bytes(), nobody.KEY, nobody.CERT)
    wrong = []
    for caller in CALLERS:
        metadata = (("authorization", keys[caller]),) if caller in keys else ()
        async with grpc.aio.secure_channel(served.router.endpoint, credentials) as channel:
            for method in all_methods():
                got = (await code_of(channel, method, metadata)).name
                expected = expected_of(method, caller)
                if got != expected:
                    wrong.append((method, caller, got, expected))
    assert not wrong


async def test_a_certificate_counts_as_much_as_a_key_and_says_who_calls(
    served: Served, pki: Pki, keys: dict[str, str]
) -> None:
    alice = pki.files("client/umbrella/alice")
    key = keys["client"].removeprefix("Bearer ")
    config = ClientConfig(ca=alice.ca, cert=alice.cert, key=alice.key, api_key=key)
    endpoint = served.router.endpoint
    async with (
        AsyncClient(endpoint, config=config) as client,
        AsyncClient(endpoint, config=ClientConfig(ca=pki.ca, api_key=key)) as of_the_key,
    ):
        await of_the_key.models()  # it is connected when the request begins
        stream = client.stream(token_ids=[1, 2], max_tokens=900, request_id="r")
        await anext(stream)
        assert not await of_the_key.cancel("r"), "it is the certificate's tenant's"
        assert await client.cancel("r")
    worker = pki.files("worker/w-0")
    pair = (worker.key.read_bytes(), worker.cert.read_bytes())
    credentials = grpc.ssl_channel_credentials(pki.ca.read_bytes(), *pair)
    async with grpc.aio.secure_channel(served.router.endpoint, credentials) as channel:
        shown = (("authorization", keys["client"]),)
        (method,) = (each for each in all_methods() if each.endswith("ListModels"))
        assert (await code_of(channel, method, shown)).name == "PERMISSION_DENIED"


async def test_nobodys_key_makes_nobody_else(served: Served, pki: Pki, tmp_path: Path) -> None:
    """It is public: whatever it signs must not be believed."""
    forged = signed_by_nobody(pki.files("operator/alice").cert.read_bytes())
    for cert in (forged, forged + nobody.CERT):
        credentials = grpc.ssl_channel_credentials(pki.ca.read_bytes(), nobody.KEY, cert)
        async with grpc.aio.secure_channel(served.router.endpoint, credentials) as channel:
            for method in all_methods():
                assert (await code_of(channel, method, ())).name == "UNAVAILABLE"


def signed_by_nobody(pem: bytes) -> bytes:
    """A certificate with these names, for nobody's key and signed with it."""
    old, issuer = map(x509.load_pem_x509_certificate, (pem, nobody.CERT))
    key = serialization.load_pem_private_key(nobody.KEY, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    builder = x509.CertificateBuilder(
        issuer.subject, old.subject, key.public_key(), old.serial_number,
        old.not_valid_before_utc, old.not_valid_after_utc, list(old.extensions),
    )  # fmt: skip
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def expected_of(method: str, caller: str) -> str:
    if method.endswith("Health/Check"):
        return IN  # open to all
    if caller != "client":
        return "UNAUTHENTICATED"
    if method not in HERE:
        return "UNIMPLEMENTED"
    return IN if "client" in HERE[method].split() else "PERMISSION_DENIED"


async def test_every_path_wants_a_key_that_counts(
    served: Served, pki: Pki, keys: dict[str, str]
) -> None:
    context = context_of(pki.files("worker/w-0"), shows=False)
    host, _, port = served.router.http_endpoint.rpartition(":")
    for path, roles in HTTP.items():
        path = path.replace("{name:path}", "m")
        for caller in CALLERS:
            async with asyncio.timeout(20.0):
                reader, writer = await asyncio.open_connection(
                    host, int(port), ssl=context, server_hostname=server_name(Role.ROUTER)
                )
                shown = f"Authorization: {keys[caller]}\r\n" if caller in keys else ""
                head = f"GET {path} HTTP/1.1\r\nHost: h\r\n{shown}Connection: close\r\n\r\n"
                writer.write(head.encode())
                status = int((await reader.read()).split()[1])
                writer.transport.abort()
            if caller in roles.split() or "nobody" in roles:
                assert status in (200, 404, 405, 503), (path, caller)
            else:
                assert status == (403 if caller == "client" else 401), (path, caller)


async def test_another_tenants_request_is_neither_found_nor_cancelled(
    served: Served, pki: Pki, keys: dict[str, str]
) -> None:
    def client(caller: str) -> AsyncClient:
        key = keys[caller].removeprefix("Bearer ")
        config = ClientConfig(ca=pki.ca, api_key=key)
        return AsyncClient(served.router.endpoint, config=config)

    async with client("client") as ours, client("other") as theirs:
        await theirs.models()  # it is connected when the request begins
        options: dict[str, Any] = {"token_ids": [1, 2], "max_tokens": 500, "request_id": "r"}
        stream = ours.stream(**options)
        await anext(stream)
        assert not await theirs.cancel("r")
        assert len((await stream.completion()).tokens) == 500
