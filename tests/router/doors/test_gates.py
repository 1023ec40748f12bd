"""The gates of a router, and the listeners that must not be opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Group
from rich.text import Text

from tests.pki import Pki
from twolane.cli.status import render
from twolane.router.config import RouterConfig, ServerConfig
from twolane.router.doors.gates import Gates
from twolane.router.router import Router
from twolane.rpc.link import LinkBrokenError
from twolane.rpc.listen import ListenError
from twolane.security.console_tokens import ConsoleTokens
from twolane.security.credentials import Credentials, UnprotectedError
from twolane.status import ClusterStatus
from twolane.v1 import cluster_pb2, worker_pb2


def test_a_door_that_other_machines_reach_wants_tls() -> None:
    for place in (ServerConfig(host="10.0.0.5"), ServerConfig(bind_host="::")):
        with pytest.raises(UnprotectedError, match="needs TLS"):
            Gates(place, None, ConsoleTokens(""))


def test_an_insecure_door_is_red_in_the_status() -> None:
    insecure = Credentials(insecure=True)
    gates = Gates(
        ServerConfig(host="10.0.0.5", bind_host="::", credentials=insecure), None, ConsoleTokens("")
    )
    listeners = gates.insecure_listeners()
    assert listeners == ["the clients' doors at 10.0.0.5", "the workers' door at ::"]
    status = ClusterStatus(
        router_id="r",
        uptime_s=1.0,
        workers=(),
        requests=(),
        requests_by_state={},
        counters={},
        insecure_listeners=tuple(listeners),
    )
    shown = render(status)
    assert isinstance(shown, Group)
    (line,) = [
        part for part in shown.renderables if isinstance(part, Text) and "without TLS" in part.plain
    ]
    assert "the clients' doors at 10.0.0.5" in line.plain
    assert "red" in str(line.style)


class NobodyThere:
    """No worker can be dialled."""

    async def dial_worker(self, address: worker_pb2.WorkerAddress) -> Any:
        raise LinkBrokenError("nobody there")


async def test_insecure_listeners_of_workers_and_agents_are_in_the_status() -> None:
    announce = cluster_pb2.AnnounceRequest(
        worker=worker_pb2.WorkerAddress(worker_id="d-0", epoch=1, endpoint="w:1"),
        roles=[worker_pb2.ROLE_DECODE],
        model="m",
        insecure_listeners=["--bind-host 10.0.0.5"],
    )
    host = cluster_pb2.HostStatus(name="b", insecure_listeners=["--listen"])
    async with Router(RouterConfig(), NobodyThere()) as router:
        router.announce(announce)
        report = cluster_pb2.SuperviseRequest(controller_id="c", hosts=[host])
        router.operations.supervise(report)
        shown = [*router.status().insecure_listeners]
    assert shown == ["d-0 (--bind-host 10.0.0.5)", "the agent of b (--listen)"]


def test_with_tls_an_address_where_callers_speak_plain_text_is_not_advertised(
    tmp_path: Path,
) -> None:
    tls = Credentials(tls=Pki(tmp_path / "pki").files("router/router-0"))
    place = ServerConfig(bind_host="::", advertise_host="127.0.0.1", credentials=tls)
    with pytest.raises(ListenError, match="advertise an address that other machines reach"):
        Gates(place, None, ConsoleTokens(""))
