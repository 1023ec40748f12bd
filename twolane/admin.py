"""The operator's client: everything about the cluster, and what moves workers.

with twolane.AdminClient() as admin:
    for worker in admin.status().workers:
        print(worker.worker_id, worker.state)

It speaks to the unix socket that `twolane up` shows, which its user alone may open.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from twolane.config import SOCKET_NAME, ClientConfig
from twolane.errors import InvalidParameterError, UnavailableError
from twolane.failures import explain
from twolane.params import check_text
from twolane.rpc.options import CHANNEL_OPTIONS
from twolane.status import ClusterStatus, DrainInfo
from twolane.v1 import cluster_pb2, cluster_pb2_grpc

UNIX = "unix:"
_FOLDERS = "twolane-*"  # in the temporary folder: see twolane.deploy.process.scratch


class AdminClient:
    """Every method blocks, may be called from any thread, and raises errors of `twolane.errors`."""

    def __init__(self, endpoint: str | None = None, *, config: ClientConfig | None = None) -> None:
        """`endpoint` is unix:PATH; None: that of the only cluster of this user on this machine.
        Raises `UnavailableError` if there is none, or several."""
        if endpoint is None:
            endpoint = only_socket()
        if not (isinstance(endpoint, str) and endpoint.startswith(UNIX)):
            raise InvalidParameterError("endpoint", endpoint, "unix:PATH, as `twolane up` shows it")
        self.endpoint = endpoint
        self._config = config or ClientConfig()
        self._channel = grpc.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        self._stub = cluster_pb2_grpc.AdminServiceStub(self._channel)

    def status(self) -> ClusterStatus:
        """One look at workers, pages and requests."""
        request = cluster_pb2.GetClusterStatusRequest()
        return ClusterStatus.from_proto(self._call(self._stub.GetClusterStatus, request))

    def drain(
        self,
        worker_id: str,
        *,
        undo: bool = False,
        hand_over: bool = False,
        expect_epoch: int = 0,
    ) -> None:
        """Let a worker finish what it runs and give it nothing new; `undo` takes that back.

        `hand_over`: what decodes there is resumed elsewhere as soon as there is room, instead of
        waited for. Raises `PreconditionError` if the worker's epoch is not `expect_epoch` (0: any),
        or if the ticket was taken that an undo would take back.
        """
        check_text("worker_id", worker_id)
        request = cluster_pb2.DrainWorkerRequest(
            worker_id=worker_id, undo=undo, hand_over=hand_over, expect_epoch=expect_epoch
        )
        self._call(self._stub.DrainWorker, request)

    def watch_drain(
        self, worker_id: str, *, timeout_s: float, expect_epoch: int = 0
    ) -> Iterator[DrainInfo | None]:
        """How far its drain is, at each change; None: the worker has not answered yet, or has
        ended. The last is the one with the ticket, if the worker is there so long.

        Raises `DeadlineError` after `timeout_s`, and `PreconditionError` if it does not drain, or
        is another incarnation.
        """
        check_text("worker_id", worker_id)
        request = cluster_pb2.WatchDrainRequest(worker_id=worker_id, expect_epoch=expect_epoch)
        try:
            for news in self._stub.WatchDrain(request, timeout=timeout_s):
                is_told = news.HasField("drain")
                yield DrainInfo.from_proto(news.drain) if is_told else None
        except grpc.RpcError as error:
            raise explain(error, endpoint=self.endpoint, timeout_s=timeout_s) from error

    def take_ticket(self, worker_id: str, ticket: int, *, expect_epoch: int) -> None:
        """Make a drain final, before the worker is killed: nobody can undo it any more. It counts
        when the worker reports `is_taken`. Raises `PreconditionError` if that ticket, the number of
        its drain, does not hold."""
        check_text("worker_id", worker_id)
        request = cluster_pb2.DrainWorkerRequest(
            worker_id=worker_id, take_ticket=ticket, expect_epoch=expect_epoch
        )
        self._call(self._stub.DrainWorker, request)

    def close(self) -> None:
        """May be called twice; no call is possible after."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _call(self, method: Any, request: object) -> Any:
        bound_s = self._config.call_timeout_s
        try:
            return method(request, timeout=bound_s)
        except grpc.RpcError as error:
            raise explain(error, endpoint=self.endpoint, timeout_s=bound_s) from error


def only_socket(name: str = SOCKET_NAME) -> str:
    """unix:PATH. Raises `UnavailableError` unless exactly one cluster of this user's runs here."""
    found = live_sockets(name)
    if len(found) == 1:
        return f"{UNIX}{found[0]}"
    if not found:
        raise UnavailableError(
            "no cluster of yours runs on this machine: start one with `twolane up`, or name an "
            "operator's socket, unix:PATH"
        )
    listed = ", ".join(f"{UNIX}{path}" for path in found)
    raise UnavailableError(
        f"several clusters of yours run here; name one with --endpoint (in Python "
        f"endpoint=…): {listed}"
    )


def live_sockets(name: str = SOCKET_NAME) -> list[Path]:
    """The operators' sockets of this user's clusters on this machine that are listened at: those of
    routers, or of that other name."""
    paths = sorted(Path(tempfile.gettempdir()).glob(f"{_FOLDERS}/{name}*"))
    live = [path for path in paths if _is_ours(path) and _is_listened_at(path)]
    # a cluster may have several routers, of which each answers for all: the first that lives
    return list({path.parent: path for path in reversed(live)}.values())[::-1]


def _is_ours(path: Path) -> bool:
    try:
        return path.stat().st_uid == path.parent.stat().st_uid == os.geteuid()
    except OSError:  # it has ended meanwhile, or is somebody else's
        return False


def _is_listened_at(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
