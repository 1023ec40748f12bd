"""Every method of every listener x every kind of caller, against the tables of `walk_tables`.

Methods are found by descriptors, HTTP paths by the application's routes: one that is not in a table
fails.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from starlette.routing import BaseRoute, Mount, Route

from tests.deploy.walk_calls import (
    context_of,
    outcomes,
    plain_channel,
    status_of,
    tls_channel,
)
from tests.deploy.walk_tables import (
    EVERY_ROLE,
    HTTP,
    IN,
    LISTENERS,
    METRICS,
    ON_LOOPBACK,
    PAGES,
    all_methods,
)
from tests.deploy.walked import CONSOLE_API, SECRET, cluster
from tests.pki import FAR, Pki, far_is_far
from twolane.router.config import HttpConfig, RouterConfig
from twolane.router.doors.console.routes import Console
from twolane.router.doors.http.app import make_app
from twolane.router.router import Router
from twolane.rpc.secret import shown
from twolane.security.credentials import Credentials
from twolane.security.identity import Role
from twolane.v1 import cluster_pb2, worker_pb2

CODE = grpc.StatusCode


def test_every_method_that_there_is_has_its_place_at_a_listener() -> None:
    listed = {method for methods in LISTENERS.values() for method in methods}
    assert listed == {*all_methods()} == {*ON_LOOPBACK}


def identity_of(role: str) -> str:
    return "client/acme/alice" if role == "client" else f"{role}/some-{role}"


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


async def test_beyond_the_loopback_every_method_is_for_its_roles_alone(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far_is_far(monkeypatch)
    strangers = Pki(tmp_path / "strangers")
    callers = {role: tls_channel(pki.files(identity_of(role))) for role in EVERY_ROLE.split()}
    callers |= {
        "without a role": tls_channel(pki.without_role()),
        "nothing": tls_channel(pki.files("worker/w-0"), shows=False),
        "plain text": plain_channel,
        "wrong authority": tls_channel(replace(strangers.files("router/router-0"), ca=pki.ca)),
        "expired": tls_channel(pki.expired("worker/w-0")),
    }
    wrong: list[tuple[str, str, str, str, str]] = []
    async with cluster(tmp_path, FAR, pki) as served:
        for caller, open_channel in callers.items():
            # the secret of the cluster means nothing here
            found = await outcomes(
                served, open_channel, metadata=shown(SECRET), but=("operators", "controller")
            )
            for (listener, method), code in found.items():
                if code.name != (expected := expected_beyond(listener, method, caller)):
                    wrong.append((listener, method, caller, code.name, expected))
        assert served.worker.endpoint.startswith(FAR)
    assert not wrong


def expected_beyond(listener: str, method: str, caller: str) -> str:
    if caller in ("nothing", "plain text", "wrong authority", "expired"):
        return "UNAVAILABLE"  # the handshake fails
    here = LISTENERS[listener]
    if method.endswith("Health/Check") and method in here:
        return IN  # the one method that is open to all
    if caller == "without a role":
        return "UNAUTHENTICATED"
    if method not in here:
        return "UNIMPLEMENTED"
    return IN if caller in here[method].split() else "PERMISSION_DENIED"


async def test_on_the_loopback_inner_methods_want_the_secret(tmp_path: Path) -> None:
    callers = {"nobody": (), "secret": shown(SECRET), "wrong secret": shown("0" * 32)}
    wrong: list[tuple[str, str, str, str, str]] = []
    async with cluster(tmp_path, "127.0.0.1", None) as served:
        for caller, metadata in callers.items():
            for (listener, method), code in (
                await outcomes(served, plain_channel, metadata=metadata)
            ).items():
                is_inner = listener in ("workers", "worker", "agent")
                if method in LISTENERS[listener]:
                    expected = IN if caller in ON_LOOPBACK[method] else "UNAUTHENTICATED"
                else:
                    is_known = caller == "secret" or not is_inner
                    expected = "UNIMPLEMENTED" if is_known else "UNAUTHENTICATED"
                if code.name != expected:
                    wrong.append((listener, method, caller, code.name, expected))
    assert not wrong


def paths(routes: list[BaseRoute], prefix: str = "") -> Iterator[str]:
    for route in routes:
        if isinstance(route, Mount):
            yield from paths(route.routes, prefix + route.path)
        elif isinstance(route, Route):
            yield prefix + route.path


async def test_every_path_that_there_is_has_its_place_in_the_table() -> None:
    app = make_app(Router(RouterConfig(), dialer=Any), HttpConfig(), Console(Any).routes)  # type: ignore[arg-type]
    assert {*paths(app.routes), "/nowhere"} == HTTP.keys()


async def test_http_paths_and_pages_of_metrics_are_for_their_roles_alone(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far_is_far(monkeypatch)
    strangers = Pki(tmp_path / "strangers")
    callers: dict[str, ssl.SSLContext | None] = {
        role: context_of(pki.files(identity_of(role))) for role in EVERY_ROLE.split()
    }
    callers |= {
        "without a role": context_of(pki.without_role()),
        "nobody": context_of(pki.files("worker/w-0"), shows=False),
        "plain text": None,
        "wrong authority": context_of(replace(strangers.files("router/router-0"), ca=pki.ca)),
        "expired": context_of(pki.expired("worker/w-0")),
    }
    wrong = []
    async with cluster(tmp_path, FAR, pki) as served:
        places = [
            (served.router.http_endpoint, Role.ROUTER, HTTP, True),
            (served.router.metrics_endpoint, Role.ROUTER, PAGES, False),
            (served.worker.metrics_endpoint, Role.WORKER, METRICS, False),
        ]
        for endpoint, role, table, may_be_nobody in places:
            no_handshake = {"plain text", "wrong authority", "expired"}
            no_handshake |= set() if may_be_nobody else {"nobody"}
            for path, roles in table.items():
                for caller, context in callers.items():
                    path = path.replace("{name:path}", "m")
                    got = await status_of(endpoint, path, context, role)
                    if caller in no_handshake:
                        expected = {0}
                    elif caller in roles.split():
                        expected = {200, 400, 404, 405, 503}
                    elif caller == "without a role" and "nobody" in roles:
                        expected = {200, 503}
                    else:
                        expected = {401 if caller in ("nobody", "without a role") else 403}
                    if got not in expected:
                        wrong.append((path, caller, got, expected))
    assert not wrong


async def test_on_the_loopback_http_and_metrics_are_open(tmp_path: Path) -> None:
    async with cluster(tmp_path, "127.0.0.1", None) as served:
        for endpoint, table in (
            (served.router.http_endpoint, HTTP),
            (served.router.metrics_endpoint, PAGES),
            (served.worker.metrics_endpoint, METRICS),
        ):
            for path in table:
                status = await status_of(endpoint, path.replace("{name:path}", "m"), None)
                assert status in ((401,) if path in CONSOLE_API else (200, 404, 405, 503))


async def test_a_worker_announces_itself_alone(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far_is_far(monkeypatch)
    async with cluster(tmp_path, FAR, pki) as served:
        ours = Credentials(tls=pki.files("worker/thief"))
        request = cluster_pb2.AnnounceRequest(
            worker=worker_pb2.WorkerAddress(worker_id="w-0", epoch=9, endpoint=f"{FAR}:1"),
            leaving=True,
        )
        async with ours.channel(served.router.worker_endpoint, Role.ROUTER) as channel:
            call: Any = channel.unary_unary("/twolane.v1.MembershipService/Announce")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(request.SerializeToString())
        assert caught.value.code() is CODE.PERMISSION_DENIED
        assert "worker/thief may not announce w-0" in str(caught.value.details())
