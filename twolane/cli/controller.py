"""The operator's client of a cluster's launcher, which starts processes, ends them and proves them
dead.

It connects to the unix socket that `twolane up` opens in its folder, which only its user can open.
"""

from __future__ import annotations

import getpass
import socket
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from twolane.admin import UNIX, only_socket, socket_of
from twolane.config import CONTROLLER_SOCKET_NAME, check_endpoint
from twolane.errors import DeadlineError, TwolaneError, UnavailableError
from twolane.failures import explain
from twolane.rpc.channel_options import CHANNEL_OPTIONS
from twolane.v1 import agent_pb2, agent_pb2_grpc

_CALL_S = 10.0
_FENCE_S = 600.0  # a fence command may take minutes


class NotProvenError(TwolaneError):
    """There is no proof that the process has ended. The message says why."""

    reason = "NOT_PROVEN"


class ControllerClient:
    """Every method blocks and raises errors of `twolane.errors`, or `NotProvenError`."""

    def __init__(self, endpoint: str | None = None) -> None:
        """`endpoint` is unix:PATH, or the HOST:PORT at which clients of a cluster of this user on
        this machine connect. If it is None, this user must have exactly one cluster here, which is
        used. Raises `UnavailableError` if there is none, or several."""
        found = only_socket(CONTROLLER_SOCKET_NAME) if endpoint is None else endpoint
        if not found.startswith(UNIX):
            found = socket_of(check_endpoint(found), CONTROLLER_SOCKET_NAME) or ""
        if not found:
            raise UnavailableError(
                f"no launcher of yours on this machine is found for a cluster at {endpoint}, and "
                "one that still starts is not found by its port: name the launcher's socket, "
                "unix:PATH"
            )
        self.endpoint = found
        self._channel = grpc.insecure_channel(self.endpoint, options=CHANNEL_OPTIONS)
        self._stub = agent_pb2_grpc.ControllerServiceStub(self._channel)

    @property
    def folder(self) -> Path:
        """The run's folder, which is removed when the cluster has stopped."""
        return Path(self.endpoint.removeprefix(UNIX)).parent

    def fence(self, worker_id: str) -> str:
        """Kill a worker. Returns the proof of its end as text, with its class."""
        request = agent_pb2.FenceWorkerRequest(worker_id=worker_id, who=getpass.getuser())
        return str(self._call(self._stub.FenceWorker, request, _FENCE_S).proof)

    def say_off(self, host: str) -> str:
        """Declare that an operator has seen this host switched off: everything that ran there
        counts as dead."""
        request = agent_pb2.SayHostOffRequest(host=host, who=getpass.getuser())
        return str(self._call(self._stub.SayHostOff, request, _CALL_S).proof)

    def stop(self, within_s: float) -> None:
        """Stop the cluster as Ctrl-C does. Raises `NotProvenError` if something may still run."""
        request = agent_pb2.StopClusterRequest(who=getpass.getuser())
        self._check_listens()  # from here on, no answer proves nothing
        try:
            self._call(self._stub.StopCluster, request, within_s)
        except DeadlineError as error:
            raise NotProvenError(f"still running after {within_s:g} s: {self.folder}") from error
        except UnavailableError as error:
            text = "not proven: the launcher has ended without a word of what it had started"
            raise NotProvenError(text) from error

    def _check_listens(self) -> None:
        """Raises `UnavailableError`."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_CALL_S)
            try:
                probe.connect(self.endpoint.removeprefix(UNIX))
            except OSError as error:
                raise UnavailableError(f"no launcher listens at {self.endpoint}") from error

    def close(self) -> None:
        """Close the connection. May be called twice."""
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

    def _call(self, method: Any, request: object, bound_s: float) -> Any:
        try:
            return method(request, timeout=bound_s)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise NotProvenError(error.details() or "") from error
            raise explain(error, endpoint=self.endpoint, timeout_s=bound_s) from error
