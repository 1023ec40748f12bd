"""Which of a cluster's sockets an operator's command uses."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingUnixStreamServer

import grpc
import pytest
from click.testing import CliRunner, Result

from twolane.admin import AdminClient, live_sockets, only_socket, socket_of
from twolane.cli.app import app
from twolane.cli.controller import ControllerClient
from twolane.errors import UnavailableError
from twolane.v1 import admin_pb2_grpc, cluster_pb2


class _Speaks(BaseRequestHandler):
    def handle(self) -> None:
        self.request.sendall(b"\0")  # as gRPC's servers begin, before they hear anything


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "twolane-1-a").mkdir()
    return tmp_path / "twolane-1-a"


def test_a_router_that_hangs_is_passed_by(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twolane.admin._SPEAKS_WITHIN_S", 60.0)
    with (
        socket.socket(socket.AF_UNIX) as hung,
        ThreadingUnixStreamServer(str(folder / "admin.sock.1"), _Speaks) as other,
    ):
        hung.bind(str(folder / "admin.sock"))
        hung.listen()
        threading.Thread(target=other.serve_forever, args=(0.01,), daemon=True).start()
        assert only_socket() == f"unix:{folder}/admin.sock.1"
        other.shutdown()


def test_of_several_clusters_each_is_told_with_its_own_start_not_that_of_its_router(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twolane.admin._TELLS_WITHIN_S", 0.05)  # they say nothing
    older, agents = folder.with_name("twolane-2-b"), folder.with_name("twolane-agent-a-0")
    starts = {folder: 1_000_000_000, older: 900_000_000, agents: 1_100_000_000}
    with ExitStack() as stack:
        for each, start in starts.items():
            each.mkdir(exist_ok=True)
            its = stack.enter_context(socket.socket(socket.AF_UNIX))
            its.bind(str(each / "admin.sock"))
            its.listen()
            os.utime(each / "admin.sock", (1_100_000_000,) * 2)  # its router was started again
            if each is not agents:  # an agent's folder outlives clusters
                (each / "lock").touch()
                os.utime(each / "lock", (start, start))
        with pytest.raises(UnavailableError) as caught:
            only_socket()
    told = dict(line.split("  since ") for line in caught.value.message.split("\n  ")[1:])
    assert told == {
        f"unix:{each}/admin.sock": f"{datetime.fromtimestamp(start):%Y-%m-%d %H:%M:%S}"
        for each, start in starts.items()
    }


def test_where_all_hang_the_first_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twolane.admin._SPEAKS_WITHIN_S", 0.0)
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as other:
        for hung, name in ((one, "admin.sock"), (other, "admin.sock.1")):
            hung.bind(str(folder / name))
            hung.listen()
        assert live_sockets() == [folder / "admin.sock"]


class _Router(admin_pb2_grpc.AdminServiceServicer):
    """One whose clients connect at `clients_at`; it hears of another router, on another host."""

    def __init__(self, clients_at: str) -> None:
        self._status = cluster_pb2.GetClusterStatusResponse(router_id=clients_at)
        for endpoint in ("10.0.0.2:7400", clients_at):
            its = self._status.routers.add().address
            its.router_id, its.grpc_endpoint = endpoint, endpoint

    def GetClusterStatus(
        self, request: cluster_pb2.GetClusterStatusRequest, context: grpc.ServicerContext
    ) -> cluster_pb2.GetClusterStatusResponse:
        return self._status


@contextmanager
def _two_clusters(folder: Path, other: str = "127.0.0.1:7300") -> Iterator[dict[str, Path]]:
    """Their folders, by the address of their clients."""
    found = {"127.0.0.1:7200": folder, other: folder.with_name("twolane-2-b")}
    servers = []
    for endpoint, each in found.items():
        each.mkdir(exist_ok=True)
        server = grpc.server(ThreadPoolExecutor(1))
        admin_pb2_grpc.add_AdminServiceServicer_to_server(_Router(endpoint), server)
        server.add_insecure_port(f"unix:{each}/admin.sock")
        server.add_insecure_port(f"unix:{each}/ctl.sock")
        server.start()
        servers.append(server)
    yield found
    for server in servers:
        server.stop(0).wait()


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"TWOLANE_ENDPOINT": None})


def test_several_clusters_are_told_apart_by_where_their_clients_connect(folder: Path) -> None:
    with _two_clusters(folder) as found:
        for name in ("admin.sock", "ctl.sock"):
            with pytest.raises(UnavailableError) as caught:
                only_socket(name)
            for endpoint, its in found.items():
                (line,) = (line for line in caught.value.message.split("\n") if f"{its}/" in line)
                assert name in line
                assert line.endswith(f", for clients at {endpoint}")


def test_an_operators_command_finds_the_cluster_whose_clients_connect_there(folder: Path) -> None:
    with _two_clusters(folder) as found:
        for endpoint in found:
            for name in (endpoint, endpoint.replace("127.0.0.1", "localhost")):
                shown = _run("status", "--json", "--endpoint", name)
                assert f'"router_id": "{endpoint}"' in shown.output
                assert _run("pages", "--endpoint", name).exit_code != 2
        with ControllerClient("localhost:7300") as controller:
            assert controller.folder == found["127.0.0.1:7300"]
        with AdminClient("localhost:7300") as admin:
            assert admin.endpoint == f"unix:{found['127.0.0.1:7300']}/admin.sock"


def test_of_two_clusters_at_one_port_none_is_taken_for_the_other(folder: Path) -> None:
    with _two_clusters(folder, "[::1]:7200") as found:
        for endpoint, its in found.items():
            assert socket_of(endpoint) == f"unix:{its}/admin.sock"
        assert socket_of("[0:0::1]:7200") == f"unix:{found['[::1]:7200']}/admin.sock"
        assert socket_of("127.0.0.2:7200") is None
        with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:7200 and \[::1\]:7200"):
            socket_of("localhost:7200")
    with _two_clusters(folder, "10.0.0.1:7200") as found:  # at 0.0.0.0, as it may be here
        assert socket_of("127.0.0.1:7200") == f"unix:{folder}/admin.sock"
        assert socket_of("127.0.0.2:7200") == f"unix:{found['10.0.0.1:7200']}/admin.sock"


def test_a_launcher_whose_socket_is_elsewhere_is_not_found_by_where_clients_connect(
    folder: Path,
) -> None:
    with _two_clusters(folder):
        (folder / "ctl.sock").unlink()  # as in an agent's folder
        with pytest.raises(UnavailableError, match="is found for a cluster at localhost:7200"):
            ControllerClient("localhost:7200")


def test_the_port_of_another_hosts_router_names_no_cluster_here(folder: Path) -> None:
    with _two_clusters(folder):
        refused = _run("doctor", "--endpoint", "localhost:7400")
        assert refused.exit_code == 2
        text = "no cluster of yours on this machine has its clients at localhost:7400"
        assert text in refused.output


def test_where_no_cluster_runs_an_operators_command_says_so(folder: Path) -> None:
    shown = _run("doctor")
    assert shown.exit_code == 3
    where = f"(none has a socket below {folder.parent})"  # `up` may have had another TMPDIR
    assert f"no cluster of yours runs on this machine {where}" in shown.output
