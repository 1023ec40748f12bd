"""The asyncio client: one method for each call of the clients' API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from twolane.calls.door import CLOSED, Door, Doors
from twolane.calls.resuming import ResumingCall, is_lost, is_unheard
from twolane.config import ClientConfig, check_seconds
from twolane.errors import (
    CancelledError,
    DeadlineError,
    InvalidRequestError,
    UnavailableError,
)
from twolane.failures import TlsUse, explain, unreachable
from twolane.params import check_text
from twolane.prompts import RequestOptions, build_request
from twolane.rpc.own_cancel import is_own_task_cancelled
from twolane.security.target import find_target
from twolane.service_status import Caller, ServiceStatus
from twolane.stream import AsyncStream, check_loop, running_loop
from twolane.v1 import inference_pb2
from twolane.values import Completion, Model

_LEAST_SHARE_S = 2.0  # of a short call's time, for each router in turn


class AsyncClient:
    """Connects to every router of a cluster and runs any number of requests at once, on one event
    loop.

    An endpoint may name several routers, "a:7200,b:7200", or be a host name with several addresses.
    Requests are distributed over them; if a router is lost, its answers continue at another.

    The constructor does not use the network. The first call connects; so does `connect()`, which
    waits until the cluster answers. Every method raises only errors of `twolane.errors` (and
    `asyncio.CancelledError` when its own task is cancelled, which cancels the request).
    """

    def __init__(self, endpoint: str | None = None, *, config: ClientConfig | None = None) -> None:
        self._config = config or ClientConfig()
        self._target = find_target(endpoint, self._config)
        self._is_closed = False
        self._opened: tuple[asyncio.AbstractEventLoop, Doors] | None = None

    @property
    def endpoint(self) -> str:
        return self._target.endpoint

    async def connect(self, timeout_s: float | None = None) -> Self:
        """Return `self` as soon as the cluster can be reached; raise UnavailableError if it
        cannot."""
        bound_s = self._config.connect_timeout_s if timeout_s is None else timeout_s
        check_seconds("timeout_s", bound_s)
        try:
            async with asyncio.timeout(bound_s):
                await _first_of([door.channel.channel_ready() for door in self._doors.all])
        except TimeoutError:
            if self._target.ca:
                await self.models()  # raises the reason if it fails
            raise unreachable(self.endpoint, f"no connection within {bound_s:g} s") from None
        if self._is_closed:
            raise CancelledError(CLOSED)
        return self

    async def generate(
        self, prompt: str | None = None, **options: Unpack[RequestOptions]
    ) -> Completion:
        """Generate the whole answer to exactly one of `prompt`, `token_ids=` and `messages=`."""
        async with self.stream(prompt, **options) as stream:
            return await stream.completion()

    def stream(self, prompt: str | None = None, **options: Unpack[RequestOptions]) -> AsyncStream:
        """Stream the answer as it is generated. The request starts at once; see `AsyncStream` for
        how it ends."""
        request = build_request(prompt, options)
        timeout_s = options.get("timeout_s")
        bound_s = self._config.timeout_s if timeout_s is None else timeout_s
        call = ResumingCall(self._doors, request, bound_s)
        return AsyncStream(
            call,
            request.request_id,
            partial(explain, endpoint=self.endpoint, timeout_s=bound_s, tls=self._tls),
        )

    async def cancel(self, request_id: str) -> bool:
        """Cancel a running request, also one of another client: its stream ends with
        CancelledError.

        Returns False if no such request is running. Raises UnavailableError or DeadlineError if
        none of the routers that answer has it, and one does not answer. A router that does not
        answer and that the others no longer announce is gone and does not count.
        """
        check_text("request_id", request_id)
        if not request_id:
            raise InvalidRequestError("request_id is empty", field="request_id")
        request = inference_pb2.CancelRequest(request_id=request_id)
        lost: UnavailableError | DeadlineError | None = None
        known, bound_s = self._doors, self._config.call_timeout_s
        doors = [*known.all]
        shares = _shares(bound_s, len(doors))
        for door in doors:  # it may run at any router
            within_s = next(shares, None)
            if within_s is None:
                lost = lost or DeadlineError(f"not every router answered within {bound_s:g} s")
                break
            try:
                response = await self._call("Cancel", request, door, within_s)
            except (UnavailableError, DeadlineError) as error:
                if door in known.all:  # else it is gone, and the others no longer name it
                    lost = error  # another router may find it all the same
                continue
            if response.found:
                return True
        if lost is not None:
            raise lost
        return False

    async def models(self) -> list[Model]:
        """The models that the cluster serves."""
        request = inference_pb2.ListModelsRequest()
        response = await self._call("ListModels", request)
        return [Model.from_proto(model) for model in response.models]

    async def status(self, submission_ids: Sequence[str] = ()) -> ServiceStatus:
        """Whether the cluster serves, its models, and the progress of these submissions. Operators
        see more with `twolane.AdminClient`."""
        for submission_id in submission_ids:
            check_text("submission_ids", submission_id)
        request = inference_pb2.GetStatusRequest(submission_ids=submission_ids)
        return ServiceStatus.from_proto(await self._call("GetStatus", request))

    async def who_am_i(self) -> Caller:
        """This client's identity at the cluster, and what is left of its tenant's quotas."""
        request = inference_pb2.WhoAmIRequest()
        return Caller.from_proto(await self._call("WhoAmI", request))

    async def close(self) -> None:
        """Cancel the running calls and close the connections. May be called twice; no call is
        possible afterwards."""
        if self._opened is None or self._opened[0].is_closed():  # its calls have ended with it
            self._is_closed = True
            return
        loop, doors = self._opened
        check_loop(loop)
        self._is_closed = True
        await doors.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def _doors(self) -> Doors:
        """Created at first use, because they belong to the event loop that runs then."""
        if self._is_closed:
            raise InvalidRequestError("this client is closed")
        if self._opened is None:
            self._opened = (running_loop(), Doors(self._target.each()))
        loop, doors = self._opened
        check_loop(loop)
        return doors

    @property
    def _tls(self) -> TlsUse:
        return TlsUse(str(self._target.ca), str(self._target.cert))

    async def _call(
        self, name: str, request: object, at: Door | None = None, within_s: float | None = None
    ) -> Any:
        """Make a short call, which may be repeated: at the door `at`, or else at the next one that
        answers within its share of the time."""
        try:
            return await self._answer(name, request, at, within_s)
        except asyncio.CancelledError:
            if is_own_task_cancelled():
                raise
            raise CancelledError(CLOSED) from None

    async def _answer(
        self, name: str, request: object, at: Door | None, within_s: float | None
    ) -> Any:
        doors = self._doors
        bound_s = self._config.call_timeout_s if within_s is None else within_s
        clock = asyncio.get_running_loop().time
        end = clock() + bound_s
        lost: grpc.aio.AioRpcError | None = None
        for share_s in _shares(bound_s, 1 if at else len(doors.all)):
            door = at or doors.next()
            try:
                method = getattr(door.inference, name)
                return await method(request, timeout=share_s, metadata=self._target.metadata)
            except grpc.aio.AioRpcError as error:
                lost = error
                if not (is_lost(error) or error.code() is grpc.StatusCode.DEADLINE_EXCEEDED):
                    break
                doors.note_lost(door)
        assert lost is not None
        if is_unheard(lost) and (left_s := end - clock()) > 0:
            how = {"timeout": left_s, "metadata": self._target.metadata, "wait_for_ready": True}
            try:
                return await getattr(door.inference, name)(request, **how)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    lost = error
        raise explain(lost, endpoint=self.endpoint, timeout_s=bound_s, tls=self._tls) from lost


def _shares(bound_s: float, n: int) -> Iterator[float]:
    """The time of each of at most `n` calls in turn: an equal part of what is left of `bound_s`,
    but not so little that no router could answer."""
    clock = asyncio.get_running_loop().time
    end, least_s = clock() + bound_s, min(_LEAST_SHARE_S, bound_s / min(n, 2))
    for n_left in range(n, 0, -1):
        left_s = end - clock()
        if left_s > 0.0:
            yield min(left_s, max(left_s / n_left, least_s))


async def _first_of(works: Sequence[Awaitable[None]]) -> None:
    """Wait until one of `works` is done."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
