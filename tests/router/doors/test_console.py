"""The console at the HTTP door: who is let in, and what a browser is told about the page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest

from tests.router.http.asking import http_cluster
from twolane.errors import UnauthenticatedError
from twolane.router.config import ServerConfig
from twolane.router.doors.console.routes import HEADERS
from twolane.security.access import HTTP_OPEN
from twolane.security.console_tokens import HOURS_S, ConsoleTokens
from twolane.security.credentials import Credentials
from twolane.security.identity import Identity, Role
from twolane.v1 import admin_pb2, admin_pb2_grpc

SECRET = "a-secret-of-the-cluster"
NOW = 1_800_000_000.0
ANNA = Identity(Role.OPERATOR, "anna")
LOOK = "/console/api/look"
CHAT = "/console/api/chat"
ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
SERVER = ServerConfig(stop_grace_s=0.2, metrics_port=None, credentials=Credentials(secret=SECRET))


def shown(identity: Identity, *, at: float | None = None, secret: str = SECRET) -> dict[str, str]:
    token, _ = ConsoleTokens(secret).issue(identity, time.time() if at is None else at)
    return {"authorization": f"Bearer {token}"}


async def test_the_page_is_open_and_has_no_data_and_loads_nothing_from_elsewhere() -> None:
    async with http_cluster(server_config=SERVER) as (client, _, _):
        for path in sorted(HTTP_OPEN - {"/health"}):
            answer = await client.get(path)
            assert answer.status_code == 200
            assert {name: answer.headers[name] for name in HEADERS} == HEADERS
            assert "://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
            assert "innerHTML" not in answer.text
        page = (await client.get("/console")).text
        assert "<script>" not in page
        assert " style=" not in page
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


async def test_what_it_draws_is_for_operators_and_viewers_and_the_chat_for_operators() -> None:
    viewer = Identity(Role.VIEWER, "bob")
    callers = {
        "nobody": ({}, 401, 401),
        "another cluster": (shown(ANNA, secret="another-secret-of-16"), 401, 401),
        "long ago": (shown(ANNA, at=time.time() - HOURS_S - 1), 401, 401),
        "not a token": ({"authorization": "Bearer tlc.1.operator"}, 401, 401),
        "not a key": ({"authorization": "Bearer EMPTY"}, 401, 401),
        "viewer": (shown(viewer), 200, 403),
        "operator": (shown(ANNA), 200, 200),
    }
    async with http_cluster(server_config=SERVER) as (client, _, _):
        for name, (headers, looks, chats) in callers.items():
            look = await client.get(LOOK, headers=headers)
            assert look.status_code == looks, name
            if chats != 200:
                asked = await client.post(CHAT, headers=headers, json=ASK)
                assert asked.status_code == chats, name
        seen = (await client.get(LOOK, headers=shown(viewer))).json()
        assert (seen["who"], seen["role"]) == ("viewer/bob", "viewer")


async def test_it_draws_workers_requests_with_ledgers_and_events() -> None:
    async with http_cluster(server_config=SERVER) as (client, server, _):
        asked = {"prompt": [1, 2, 3], "max_tokens": 2, "model": server.router.models()[0].name}
        done = await client.post("/v1/completions", json=asked)
        assert done.status_code == 200
        look = (await client.get(LOOK, headers=shown(ANNA))).json()
        names = [worker["worker"]["worker_id"] for worker in look["status"]["workers"]]
        assert sorted(names) == ["d0", "p0"]
        (ended,) = look["ended"]["requests"]
        assert ended["ledger"]["attempts"] == 1
        assert any(event["kind"] == "worker.alive" for event in look["events"]["events"])
        headers = shown(ANNA)
        found = await client.get(
            "/console/api/request", params={"id": ended["submission_id"]}, headers=headers
        )
        assert found.json()["trace"]["spans"]
        nobody = await client.get(
            "/console/api/request", params={"id": "00000000"}, headers=headers
        )
        assert nobody.status_code == 404


async def test_a_page_elsewhere_cannot_have_an_operators_browser_chat() -> None:
    async with http_cluster(server_config=SERVER) as (client, _, _):
        form = {**shown(ANNA), "content-type": "text/plain"}
        asked = await client.post(CHAT, headers=form, content=b"{}")
        assert asked.status_code == 415


async def test_an_operator_at_the_socket_gets_a_token_that_names_it(tmp_path: Path) -> None:
    config = ServerConfig(
        stop_grace_s=0.2, metrics_port=None, admin_socket=str(tmp_path / "admin.sock")
    )
    async with (
        http_cluster(server_config=config) as (_, server, _),
        grpc.aio.insecure_channel(server.admin_address) as channel,
    ):
        call: Any = admin_pb2_grpc.AdminServiceStub(channel).OpenConsole
        found = await call(admin_pb2.OpenConsoleRequest())
        assert found.url == f"http://{server.http_address}/console"
        assert 0 < found.valid_until - time.time() <= HOURS_S
        async with httpx2.AsyncClient(timeout=30.0) as browser:
            headers = {"authorization": f"Bearer {found.token}"}
            seen = await browser.get(f"{found.url}/api/look", headers=headers)
        assert seen.json()["who"] == "operator"


@pytest.mark.parametrize("name", ["anna", "", "some.one-else_2"])
@pytest.mark.parametrize("role", [Role.OPERATOR, Role.VIEWER])
def test_a_token_names_who_opened_the_console(role: Role, name: str) -> None:
    tokens = ConsoleTokens(SECRET)
    token, until = tokens.issue(Identity(role, name), NOW)
    assert until == NOW + HOURS_S
    assert tokens.identity(token, NOW) == Identity(role, name)
    assert ConsoleTokens(SECRET).identity(token, until - 1) == Identity(role, name)


def test_a_process_of_the_cluster_opens_it_as_an_operator() -> None:
    tokens = ConsoleTokens(SECRET)
    token, _ = tokens.issue(Identity(Role.LOCAL), NOW)
    assert tokens.identity(token, NOW) == Identity(Role.OPERATOR)


def test_a_token_that_was_changed_or_is_old_is_none() -> None:
    tokens = ConsoleTokens("")
    token, until = tokens.issue(Identity(Role.VIEWER, "bob"), NOW)
    with pytest.raises(UnauthenticatedError, match="expired"):
        tokens.identity(token, until)
    for other in (token.replace("viewer", "operator"), f"{token}0", token[:-1], "tlc.", "tlc.é"):
        with pytest.raises(UnauthenticatedError):
            tokens.identity(other, NOW)
    with pytest.raises(UnauthenticatedError):
        ConsoleTokens("").identity(token, NOW)
