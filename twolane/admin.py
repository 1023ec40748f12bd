"""The operator's client: shows the cluster's status and drains workers.

with twolane.AdminClient() as admin:
    for worker in admin.status().workers:
        print(worker.worker_id, worker.state)

It connects to the unix socket that `twolane up` shows, which only the cluster's user can open.
"""

from __future__ import annotations

import ipaddress
import os
import selectors
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf.message import Message

from twolane.config import SOCKET_NAME, ClientConfig, check_endpoint
from twolane.errors import UnavailableError
from twolane.failures import explain
from twolane.params import check_text
from twolane.rpc.channel_options import CHANNEL_OPTIONS
from twolane.rpc.listen import host_of, is_local
from twolane.security.target import Target, find_admin_target
from twolane.status import ClusterStatus, DrainInfo
from twolane.v1 import admin_pb2, admin_pb2_grpc, cluster_pb2

UNIX = "unix:"
_SPEAKS_WITHIN_S = 0.5
_TELLS_WITHIN_S = 2.0
_FOLDERS = "twolane-*"  # in the temporary folder: see twolane.deploy.process.scratch
_LOCK = "lock"  # in such a folder, made with it


class AdminClient:
    """Every method blocks, may be called from any thread, and raises errors of `twolane.errors`."""

    def __init__(self, endpoint: str | None = None, *, config: ClientConfig | None = None) -> None:
        """`endpoint` is unix:PATH, the HOST:PORT at which clients of a cluster of this user on this
        machine connect, or, with a certificate, that of a router's --admin-port. If it is None,
        this user must have exactly one cluster on this machine, which is used. Raises
        `UnavailableError` if there is none, or several."""
        self._config = config or ClientConfig()
        if endpoint is not None and not (self._config.cert or self._config.context):
            endpoint = socket_of(check_endpoint(endpoint)) or endpoint
        target = find_admin_target(endpoint, self._config) or Target(only_socket())
        self.endpoint = target.endpoint
        self._channel = target.blocking_channel()
        self._stub = admin_pb2_grpc.AdminServiceStub(self._channel)

    def status(self) -> ClusterStatus:
        """A snapshot of workers, pages and requests."""
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
        """Let a worker finish its rows and give it no new ones; `undo` reverts that.

        With `hand_over`, the rows that decode there are resumed at other workers as soon as there
        is room. Raises `PreconditionError` if the worker's epoch is not `expect_epoch` (0: any), or
        if `undo` comes after the drain's ticket was taken.
        """
        check_text("worker_id", worker_id)
        request = cluster_pb2.DrainWorkerRequest(
            worker_id=worker_id, undo=undo, hand_over=hand_over, expect_epoch=expect_epoch
        )
        self._call(self._stub.DrainWorker, request)

    def watch_drain(
        self, worker_id: str, *, timeout_s: float, expect_epoch: int = 0
    ) -> Iterator[DrainInfo | None]:
        """The progress of its drain, at each change; None while the worker has not answered yet, or
        once it has ended. The last item is the one with the ticket, if the worker lives until then.

        Raises `DeadlineError` after `timeout_s`, and `PreconditionError` if the worker is not
        draining or is another incarnation.
        """
        check_text("worker_id", worker_id)
        request = admin_pb2.WatchDrainRequest(worker_id=worker_id, expect_epoch=expect_epoch)
        try:
            for news in self._stub.WatchDrain(request, timeout=timeout_s):
                is_told = news.HasField("drain")
                yield DrainInfo.from_proto(news.drain) if is_told else None
        except grpc.RpcError as error:
            raise explain(error, endpoint=self.endpoint, timeout_s=timeout_s) from error

    def take_ticket(self, worker_id: str, ticket: int, *, expect_epoch: int) -> None:
        """Make a drain final before the worker is killed, so that it cannot be undone. It takes
        effect when the worker reports `is_taken`. Raises `PreconditionError` if `ticket`, the
        number of the drain, is not valid any more."""
        check_text("worker_id", worker_id)
        request = cluster_pb2.DrainWorkerRequest(
            worker_id=worker_id, take_ticket=ticket, expect_epoch=expect_epoch
        )
        self._call(self._stub.DrainWorker, request)

    def call(self, method: str, request: Message, *, within_s: float | None = None) -> Any:
        """Call that method of `AdminService` (proto/twolane/v1/admin.proto): returns its response
        message. `within_s` None: as for all calls."""
        return self._call(getattr(self._stub, method), request, within_s)

    def watch(self, method: str, request: Message) -> Iterator[Any]:
        """The messages of that streaming method of `AdminService`, until it or the caller ends."""
        try:
            yield from getattr(self._stub, method)(request)
        except grpc.RpcError as error:
            raise explain(error, endpoint=self.endpoint, timeout_s=None) from error

    def close(self) -> None:
        """Close the connection. May be called twice; no call is possible afterwards."""
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

    def _call(self, method: Any, request: object, within_s: float | None = None) -> Any:
        bound_s = self._config.call_timeout_s if within_s is None else within_s
        try:
            return method(request, timeout=bound_s)
        except grpc.RpcError as error:
            raise explain(error, endpoint=self.endpoint, timeout_s=bound_s) from error


def only_socket(name: str = SOCKET_NAME) -> str:
    """The only live socket of this name, as unix:PATH. Raises `UnavailableError` unless exactly one
    cluster of this user runs on this machine."""
    found = live_sockets(name)
    if len(found) == 1:
        return f"{UNIX}{found[0]}"
    if not found:
        raise UnavailableError(
            f"no cluster of yours runs on this machine (none has a socket below "
            f"{tempfile.gettempdir()}): start one with `twolane up`, or name an operator's socket, "
            "unix:PATH"
        )
    listed = "".join(
        f"\n  {UNIX}{path}  since {_since(path)}{_for_clients(path)}" for path in found
    )
    raise UnavailableError(
        f"several clusters of yours run here; name one with --endpoint (in Python "
        f"endpoint=…):{listed}"
    )


def socket_of(endpoint: str, name: str = SOCKET_NAME) -> str | None:
    """The socket of this name, as unix:PATH, of this user's cluster on this machine whose clients
    connect at `endpoint`, a HOST:PORT of the loopback. None if there is none: the launcher of a
    cluster over agents has its socket in a folder of its own. Raises `UnavailableError` for
    localhost if clusters have that port at several of its addresses."""
    if endpoint.startswith(UNIX) or not is_local(host_of(endpoint)):
        return None
    port = endpoint.rpartition(":")[2]
    found: dict[str, Path] = {}  # by where clients connect
    for path in live_sockets():
        its = path if name == SOCKET_NAME else path.with_name(name)
        if its.exists() and (at := _clients_at(path)).rpartition(":")[2] == port:
            found[at] = its
    host = host_of(endpoint)
    same = [its for at, its in found.items() if _is_same(host_of(at), host)]
    near = [its for at, its in found.items() if _may_be(host_of(at), host)]
    if not same and len(near) > 1:
        raise UnavailableError(f"clusters of yours are at {' and '.join(found)}: name one of these")
    return next((f"{UNIX}{its}" for its in same + near), None)


def _is_same(one: str, other: str) -> bool:
    return _plain(one) == _plain(other)


def _plain(host: str) -> str:
    """One spelling of an IP address; other names as they are."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def _may_be(announced: str, host: str) -> bool:
    """Whether a router that announces one host may listen at the other, of the loopback: not where
    they are two addresses of the loopback."""
    is_certain = is_local(announced) and "localhost" not in (announced, host)
    return not is_certain or _is_same(announced, host)


def _for_clients(path: Path) -> str:
    """Where clients connect to the cluster of this socket, for a list; empty if it does not say."""
    socket_of_router = next((each for each in live_sockets() if each.parent == path.parent), path)
    found = _clients_at(socket_of_router)
    return f", for clients at {found}" if found else ""


def _clients_at(path: Path) -> str:
    """Where clients connect to the router of this operators' socket; empty if it does not say."""
    with grpc.insecure_channel(f"{UNIX}{path}", options=CHANNEL_OPTIONS) as channel:
        ask = admin_pb2_grpc.AdminServiceStub(channel).GetClusterStatus
        try:
            told = ask(cluster_pb2.GetClusterStatusRequest(), timeout=_TELLS_WITHIN_S)
        except grpc.RpcError:
            return ""
    its = (each.address for each in told.routers if each.address.router_id == told.router_id)
    return next((address.grpc_endpoint for address in its), "")


def _since(path: Path) -> str:
    """When its cluster was started. The socket itself is as old as its router, which may have been
    started again; without a lock, as in an agent's folder, nothing else tells."""
    lock = path.with_name(_LOCK)
    try:
        made = (lock if lock.exists() else path).stat().st_mtime
        return datetime.fromtimestamp(made).strftime("%Y-%m-%d %H:%M:%S")
    except OSError:  # it has ended meanwhile
        return "a while ago"


def live_sockets(name: str = SOCKET_NAME) -> list[Path]:
    """The operators' sockets of this user's clusters on this machine that have a listener: those of
    routers, or those called `name`."""
    paths = sorted(Path(tempfile.gettempdir()).glob(f"{_FOLDERS}/{name}*"))
    live: dict[Path, list[Path]] = {}
    for path in paths:
        if _is_ours(path) and _is_listened_at(path):
            live.setdefault(path.parent, []).append(path)
    # a cluster may have several routers, each of which answers for all
    return [_first_to_speak(its) for its in live.values()]


def _first_to_speak(paths: Sequence[Path]) -> Path:
    """The first socket whose server begins a connection; a hung one does not. If none does in time,
    the first."""
    if len(paths) == 1:
        return paths[0]
    with ExitStack() as stack:
        probes = stack.enter_context(selectors.DefaultSelector())
        for path in paths:
            probe = stack.enter_context(socket.socket(socket.AF_UNIX))
            probe.settimeout(_SPEAKS_WITHIN_S)
            try:
                probe.connect(str(path))
            except OSError:  # it has ended meanwhile, or takes no connection any more
                continue
            probes.register(probe, selectors.EVENT_READ, path)
        if not probes.get_map():
            return paths[0]
        speaking = [key.data for key, _ in probes.select(_SPEAKS_WITHIN_S)]
        return min(speaking, default=paths[0])


def _is_ours(path: Path) -> bool:
    try:
        return path.stat().st_uid == path.parent.stat().st_uid == os.geteuid()
    except OSError:  # it has ended meanwhile, or belongs to another user
        return False


def _is_listened_at(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_SPEAKS_WITHIN_S)
        try:
            probe.connect(str(path))
        except (BlockingIOError, TimeoutError):  # it takes no more connections
            return True
        except OSError:
            return False
    return True
