"""Which of a cluster's sockets an operator's command uses."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingUnixStreamServer

import pytest

from twolane.admin import live_sockets, only_socket
from twolane.errors import UnavailableError


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
    folder: Path,
) -> None:
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
