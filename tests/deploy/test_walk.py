"""Every method of every listener x every kind of caller, against the tables below.

Methods are found by descriptors, HTTP paths by the application's routes: one that is not in a table
fails. Nothing here reads the tables of `twolane.security.access`.
"""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import ssl
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import Default
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from starlette.routing import BaseRoute, Mount, Route

import twolane.v1
from tests.deploy.walked import CONSOLE_API, CONSOLE_PAGE, SECRET, Served, cluster
from tests.pki import FAR, Pki, far_is_far
from twolane.router.config import HttpConfig, RouterConfig
from twolane.router.doors.console.routes import Console
from twolane.router.doors.http.app import make_app
from twolane.router.router import Router
from twolane.rpc.secret import shown
from twolane.security.credentials import Credentials
from twolane.security.identity import Role
from twolane.security.tls import TlsFiles, server_name
from twolane.v1 import cluster_pb2, worker_pb2

CODE = grpc.StatusCode
IN = "INVALID_ARGUMENT"  # the gate is passed, and the message that is sent is malformed
OURS = tuple(
    importlib.import_module(f"{twolane.v1.__name__}.{module.name}")
    for module in pkgutil.iter_modules(twolane.v1.__path__)
    if module.name.endswith("_pb2")
)
WITH_GRPC = (health_pb2, reflection_pb2)
PORT = "operators' port"
EVERY_ROLE = "router worker agent controller operator viewer client"

# Method: the roles that may call it beyond the loopback; `nobody` is a caller without a certificate
# where callers may come without one.
HEALTH = {
    "grpc.health.v1.Health/Check": EVERY_ROLE,
    "grpc.health.v1.Health/List": EVERY_ROLE,
    "grpc.health.v1.Health/Watch": EVERY_ROLE,
}
REFLECTION = {"grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "operator"}
LOOKS = (
    "GetClusterStatus",
    "ListRequests",
    "GetRequest",
    "GetPages",
    "ListEvents",
    "WatchEvents",
    "WatchDrain",
    "GetConfig",
    "Diagnose",
    "OpenConsole",
)
ACTS = (
    "ReadLog",
    "CancelRequest",
    "DrainWorker",
    "CheckCluster",
    "KillWorker",
    "CordonHost",
    "DrainHost",
    "ScalePools",
    *("FlipWorker", "SetScaler", "StartRollout", "StepRollout"),
    "SetConfig",
    "ReloadConfig",
)
KEDA = ("IsActive", "StreamIsActive", "GetMetricSpec", "GetMetrics", "StreamMetricSpec")
LISTENERS: Mapping[str, Mapping[str, str]] = {
    "clients": {
        "twolane.v1.InferenceService/Generate": "client",
        "twolane.v1.InferenceService/Resume": "client",
        "twolane.v1.InferenceService/Multiplex": "client",
        "twolane.v1.InferenceService/Cancel": "client",
        "twolane.v1.InferenceService/ListModels": "client",
        "twolane.v1.InferenceService/GetStatus": "client",
        "twolane.v1.InferenceService/WhoAmI": EVERY_ROLE,
        **HEALTH,
        **REFLECTION,
    },
    "workers": {
        "twolane.v1.MembershipService/Announce": "worker",
        "twolane.v1.MembershipService/ReportGone": "agent controller",
        "twolane.v1.MembershipService/Supervise": "controller",
        "twolane.v1.PeerService/GetClusterStatus": "router",
        "twolane.v1.PeerService/DrainWorker": "router controller",
        "twolane.v1.PeerService/Cancel": "router",
        "twolane.v1.PeerService/FindSubmissions": "router",
        "twolane.v1.PeerService/Look": "router",
        "twolane.v1.PeerService/PrepareConfig": "router",
        "twolane.v1.PeerService/ApplyConfig": "router",
    },
    "operators": {  # a socket that is its user's alone: whoever reaches it is an operator
        **{f"twolane.v1.AdminService/{name}": "" for name in (*LOOKS, *ACTS)},
        **dict.fromkeys((*HEALTH, *REFLECTION), ""),
    },
    PORT: {
        **{f"twolane.v1.AdminService/{look}": "operator viewer" for look in LOOKS},
        **{f"twolane.v1.AdminService/{act}": "operator" for act in ACTS},
        **HEALTH,
        **REFLECTION,
    },
    "controller": {  # as the operators' socket
        "twolane.v1.ControllerService/FenceWorker": "",
        "twolane.v1.ControllerService/SayHostOff": "",
        "twolane.v1.ControllerService/StopCluster": "",
    },
    "agent": {
        "twolane.v1.AgentService/Describe": "controller operator viewer",
        "twolane.v1.AgentService/Start": "controller",
        "twolane.v1.AgentService/Stop": "controller",
        "twolane.v1.AgentService/Fence": "controller operator",
        "twolane.v1.AgentService/Watch": "controller",
        "twolane.v1.AgentService/KeepDesired": "controller",
        "twolane.v1.AgentService/ReadHostLog": "controller operator",
        "twolane.v1.AgentService/ReadRevision": "controller",
    },
    "keda": {f"externalscaler.ExternalScaler/{name}": "operator viewer" for name in KEDA},
    "worker": {
        "twolane.v1.WorkerService/Session": "router",
        "twolane.v1.WorkerService/Inspect": "router operator viewer",
        "twolane.v1.WorkerService/AnswerAlone": "router",
        "twolane.v1.TransferService/Connect": "worker",
        **HEALTH,
        **REFLECTION,
    },
}
# Method: callers on this machine that may call it, with the cluster's secret or without anything.
ANYBODY = frozenset({"nobody", "secret", "wrong secret"})
PROCESSES = frozenset({"secret"})
ON_LOOPBACK = {
    **dict.fromkeys(LISTENERS["worker"], PROCESSES),
    **dict.fromkeys((*HEALTH, *REFLECTION), ANYBODY),
    **dict.fromkeys(LISTENERS["clients"], ANYBODY),
    **dict.fromkeys(LISTENERS["workers"], PROCESSES),
    **dict.fromkeys(LISTENERS["operators"], ANYBODY),
    **dict.fromkeys(LISTENERS["agent"], PROCESSES),
    **dict.fromkeys((*LISTENERS["controller"], *LISTENERS["keda"]), ANYBODY),
}
HTTP = {  # path: roles, `nobody` is a caller without a certificate
    "/health": f"nobody {EVERY_ROLE}",
    "/v1/models": "client",
    "/v1/models/{name:path}": "client",
    "/v1/completions": "client",
    "/v1/chat/completions": "client",
    "/nowhere": "client",
    **dict.fromkeys(CONSOLE_PAGE, f"nobody {EVERY_ROLE}"),
    **CONSOLE_API,
}
METRICS = {"/metrics": "operator viewer"}  # of a worker; a router's:
PAGES = METRICS | {"/targets": "operator viewer"}


def all_methods() -> Iterator[str]:
    """Of every service of ours, and of those that come with gRPC."""
    for module in (*OURS, *WITH_GRPC):
        for name in module.DESCRIPTOR.services_by_name:
            service = Default().FindServiceByName(f"{module.DESCRIPTOR.package}.{name}")
            for method in service.methods:
                yield f"{service.full_name}/{method.name}"


def test_every_method_that_there_is_has_its_place_at_a_listener() -> None:
    listed = {method for methods in LISTENERS.values() for method in methods}
    assert listed == {*all_methods()} == {*ON_LOOPBACK}


async def code_of(channel: grpc.aio.Channel, method: str, metadata: Any = ()) -> grpc.StatusCode:
    """What a call with a malformed message ends with. Whoever gets as far as the message is in."""

    call: Any = channel.unary_unary(f"/{method}")  # so it is sent with the call, whatever it is
    code: grpc.StatusCode
    code = await call(b"\xff\xff\xff", metadata=metadata, timeout=20.0).code()
    return code


async def outcomes(
    served: Served, open_channel: Any, *, metadata: Any = (), but: Collection[str] = ()
) -> dict[tuple[str, str], grpc.StatusCode]:
    found: dict[tuple[str, str], grpc.StatusCode] = {}
    for listener, (endpoint, role) in served.listeners.items():
        if listener in but:
            continue
        async with open_channel(endpoint, role) as channel:
            for method in all_methods():
                found[listener, method] = await code_of(channel, method, metadata)
    return found


def tls_channel(files: TlsFiles, *, shows: bool = True) -> Any:
    """Opens channels that trust `files.ca`, and show the certificate."""
    ca = files.ca.read_bytes()
    pair = (files.key.read_bytes(), files.cert.read_bytes()) if shows else (None, None)
    credentials = grpc.ssl_channel_credentials(ca, *pair)

    def opened(endpoint: str, role: Role) -> grpc.aio.Channel:
        name = ("grpc.ssl_target_name_override", server_name(role))
        return grpc.aio.secure_channel(endpoint, credentials, options=[name])

    return opened


def plain_channel(endpoint: str, role: Role) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(endpoint)


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
                is_inner = listener in ("workers", "worker", "agent", PORT)
                if method in LISTENERS[listener]:
                    is_admin = listener == PORT and "AdminService" in method
                    allowed = PROCESSES if is_admin else ON_LOOPBACK[method]
                    expected = IN if caller in allowed else "UNAUTHENTICATED"
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


async def status_of(
    endpoint: str, path: str, context: ssl.SSLContext | None, role: Role = Role.ROUTER
) -> int:
    """Of a GET; 0 where the connection ends without an answer."""
    host, _, port = endpoint.rpartition(":")
    name = None if context is None else server_name(role)
    async with asyncio.timeout(20.0):
        try:
            reader, writer = await asyncio.open_connection(
                host, int(port), ssl=context, server_hostname=name
            )
            head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            writer.write(head.encode())
            answer = await reader.read()
        except (ssl.SSLError, ConnectionError):
            return 0
        writer.transport.abort()
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def context_of(files: TlsFiles, *, shows: bool = True) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(files.ca))
    if shows:
        context.load_cert_chain(files.cert, files.key)
    return context


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
