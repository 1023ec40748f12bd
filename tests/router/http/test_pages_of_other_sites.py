"""A page of another site asks nothing here, though its name resolves to this machine by now."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.router.http.asking import http_cluster
from tests.router.http.raw import connect, request
from twolane.router.config import ServerConfig
from twolane.router.testing.served import serve_cluster
from twolane.security.access import HTTP_OPEN
from twolane.security.credentials import Credentials
from twolane.security.key_edit import create_key
from twolane.security.key_file import KeyFile

JSON = "Content-Type: application/json\r\n"
FIELDS = {"prompt": [1, 2], "max_tokens": 3}


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://evil.example:7202", 403),
        ("http://evil.localhost.example", 403),
        ("null", 403),
        ("http://localhost:3000", 200),
        ("http://app.localhost:3000", 200),
        ("http://127.0.0.1:7202", 200),
        ("", 200),
    ],
)
async def test_pages_of_other_sites_are_refused(origin: str, status: int) -> None:
    """DNS rebinding: to the browser it is one origin, so there is no preflight that could fail."""
    shown = f"Origin: {origin}\r\n" if origin else ""
    async with http_cluster() as (_, server, _):
        raw = await connect(server, request(FIELDS, headers=JSON + shown))
        found, said = await raw.answer()
        raw.close()
        assert found == status, said


def get(path: str, host: str | None, version: str = "HTTP/1.1") -> bytes:
    shown = "" if host is None else f"Host: {host}\r\n"
    return f"GET {path} {version}\r\n{shown}Connection: close\r\n\r\n".encode()


OURS = (
    "localhost",
    "LocalHost:7202",
    "localhost.",
    "app.localhost:3000",
    "host.docker.internal:7202",
    "127.0.0.1:7202",
    "127.8.9.10",
    "[::1]:7202",
    "0.0.0.0:7202",
    "gpu-a:7202",  # which is advertised
    "",
    None,
)
OTHERS = (
    "evil.example",
    "evil.example:7202",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "notlocalhost",
    "internal.evil.example",
    "x",
    "10.0.0.1:7202",
    "[2001:db8::1]:7202",
    "[::1",
    "evil.example, localhost",
)


async def test_a_door_of_this_machine_alone_answers_only_where_it_is_called_by_its_names() -> None:
    """A page sends no Origin with a GET of what the browser takes for its own site."""
    place = ServerConfig(stop_grace_s=0.2, metrics_port=None, advertise_host="GPU-a")
    async with http_cluster(server_config=place) as (_, server, _):
        for host in (*OURS, *OTHERS):
            for version in ("HTTP/1.1", "HTTP/1.0"):
                raw = await connect(server, get("/v1/models", host, version))
                status, body = await raw.answer()
                assert status == (200 if host in OURS else 403), host
                assert await raw.is_closed()
                raw.close()
        assert body["error"] == {
            "message": "Host is evil.example, localhost; without API keys (--keys) this door "
            "answers only to localhost and 127.0.0.1, as a web page can point any other name here: "
            "call it by one of these, let a proxy send one of these as Host, or use --keys",
            "type": "permission_error",
            "param": None,
            "code": "forbidden",
        }
        assert server._look().counters["denied.http"] == 2 * len(OTHERS)


async def test_that_holds_for_every_path_and_before_a_body_is_read() -> None:
    async with http_cluster() as (_, server, _):
        for path in (*HTTP_OPEN, "/console/api/look", "/v1/models/fake", "/nowhere"):
            raw = await connect(server, get(path, "evil.example"))
            assert (await raw.answer())[0] == 403, path
            raw.close()
        whole = request(FIELDS, headers=JSON).replace(b"Host: localhost", b"Host: evil.example")
        raw = await connect(server, whole[:-3])
        assert (await raw.answer())[0] == 403
        raw.close()


async def test_a_door_that_others_reach_or_that_wants_keys_may_have_any_name(
    tmp_path: Path,
) -> None:
    """At the first a proxy in the same pod asks over the loopback, and sends the name it got."""
    far = ServerConfig(host="0.0.0.0", metrics_port=None, credentials=Credentials(insecure=True))
    key, _ = create_key(tmp_path / "keys.yaml", "red")
    keys = KeyFile(tmp_path / "keys.yaml")
    for config, file, shown, status in (
        (far, None, "", 200),
        (None, keys, "", 401),
        (None, keys, f"Authorization: Bearer {key}\r\n", 200),
    ):
        async with serve_cluster("p0", "d0", server_config=config, keys=file) as (server, _):
            raw = await connect(server, get("/v1/models", f"llm.example\r\n{shown}".strip()))
            assert (await raw.answer())[0] == status
            raw.close()
