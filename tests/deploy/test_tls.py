"""Clients over TLS: certificates renewed under load, and why a connection failed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.walk_calls import context_of, status_of
from tests.deploy.walked import Served, cluster
from tests.pki import FAR, Pki, far_is_far
from twolane import AsyncClient, UnauthenticatedError
from twolane.config import ClientConfig
from twolane.security.certs import renew
from twolane.security.tls import TlsFiles

CLIENTS = 4
RENEWALS = 5


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


@pytest.fixture
async def served(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Served]:
    far_is_far(monkeypatch)
    async with cluster(tmp_path, FAR, pki) as served:
        yield served


def config_of(files: TlsFiles) -> ClientConfig:
    return ClientConfig(ca=files.ca, cert=files.cert, key=files.key)


async def answer(served: Served, files: TlsFiles) -> str:
    async with AsyncClient(served.router.endpoint, config=config_of(files)) as client:
        return (await client.generate(token_ids=[1, 2], max_tokens=4)).text


async def test_certificates_are_renewed_under_load_without_an_error(
    served: Served, pki: Pki
) -> None:
    files = pki.files("client/acme/alice")
    n_answers = [0] * CLIENTS
    stop = asyncio.Event()

    async def ask(nth: int) -> None:
        """Half of them dial anew each time, half keep their client."""
        async with AsyncClient(served.router.endpoint, config=config_of(files)) as client:
            while not stop.is_set():
                if nth % 2:
                    await client.generate(token_ids=[nth], max_tokens=4)
                else:
                    await answer(served, files)
                n_answers[nth] += 1

    async with asyncio.TaskGroup() as tasks:
        for nth in range(CLIENTS):
            tasks.create_task(ask(nth))
        for _ in range(RENEWALS):
            before = list(n_answers)
            while any(now < was + 2 for now, was in zip(n_answers, before, strict=True)):
                await asyncio.sleep(0.01)
            await asyncio.to_thread(renew, pki.directory)
        stop.set()
    assert min(n_answers) >= 2 * RENEWALS


async def test_a_server_takes_an_authority_that_is_added(served: Served, pki: Pki) -> None:
    other = Pki(pki.directory.parent / "other")
    client = replace(other.files("client/acme/bob"), ca=pki.ca)
    assert await status_of(served.router.http_endpoint, "/v1/models", context_of(client)) == 0
    with pytest.raises(UnauthenticatedError, match="refused the certificate"):
        await answer(served, client)
    both = pki.directory / "both.crt"
    both.write_bytes(pki.ca.read_bytes() + other.ca.read_bytes())
    os.replace(both, pki.ca)
    await answer(served, client)
    assert await status_of(served.router.http_endpoint, "/v1/models", context_of(client)) == 200


async def reason(endpoint: str, **options: Any) -> str:
    async with AsyncClient(endpoint, config=ClientConfig(**options)) as client:
        with pytest.raises(UnauthenticatedError) as caught:
            await client.models()
    return str(caught.value)


async def test_the_error_says_which_certificate_failed_and_why(
    served: Served, pki: Pki, tmp_path: Path
) -> None:
    endpoint, files = served.router.endpoint, pki.files("client/acme/alice")
    shows: dict[str, Any] = {"cert": files.cert, "key": files.key}
    stranger = Pki(tmp_path / "strangers")
    assert f"is not signed by --ca {stranger.ca}" in await reason(endpoint, ca=stranger.ca, **shows)
    assert "requires a client certificate (--cert FILE --key FILE)" in await reason(
        endpoint, ca=pki.ca
    )
    assert "it may require TLS (--ca FILE" in await reason(endpoint)
    bad = pki.expired("client/acme/alice")
    assert f"refused the certificate {bad.cert}" in await reason(
        endpoint, ca=bad.ca, cert=bad.cert, key=bad.key
    )
    files = pki.files("router/router-0")
    assert "router/router-0 may not call ListModels; that is for: client" in str(
        await denied(endpoint, files)
    )


async def denied(endpoint: str, files: TlsFiles) -> Exception:
    async with AsyncClient(endpoint, config=config_of(files)) as client:
        try:
            await client.models()
        except Exception as error:  # noqa: BLE001  it is looked at
            return error
    raise AssertionError("it may")


async def test_a_plain_server_says_so_to_a_client_with_tls(tmp_path: Path, pki: Pki) -> None:
    async with cluster(tmp_path, "127.0.0.1", None) as served:
        text = await reason(served.router.endpoint, ca=pki.ca)
        assert "speaks plain text, not TLS: leave --ca out" in text
