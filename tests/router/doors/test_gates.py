"""The gates of a router, and the listeners that must not be opened."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Group
from rich.text import Text

from tests.pki import Pki
from twolane.cli.status import render
from twolane.router.config import ServerConfig
from twolane.router.doors.gates import Gates
from twolane.rpc.listen import ListenError
from twolane.security.credentials import Credentials, UnprotectedError
from twolane.status import ClusterStatus


def test_a_door_that_other_machines_reach_wants_tls() -> None:
    for place in (ServerConfig(host="10.0.0.5"), ServerConfig(bind_host="::")):
        with pytest.raises(UnprotectedError, match="needs TLS"):
            Gates(place, None)


def test_an_insecure_door_is_red_in_the_status() -> None:
    insecure = Credentials(insecure=True)
    gates = Gates(ServerConfig(host="10.0.0.5", bind_host="::", credentials=insecure), None)
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


def test_with_tls_an_address_where_callers_speak_plain_text_is_not_advertised(
    tmp_path: Path,
) -> None:
    tls = Credentials(tls=Pki(tmp_path / "pki").files("router/router-0"))
    place = ServerConfig(bind_host="::", advertise_host="127.0.0.1", credentials=tls)
    with pytest.raises(ListenError, match="advertise an address that other machines reach"):
        Gates(place, None)
