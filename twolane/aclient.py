"""The asyncio client: everything that twolane's door offers, as methods."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self, TypeVar, Unpack

import grpc

from twolane.config import ClientConfig, check_seconds
from twolane.errors import InvalidRequestError
from twolane.failures import TlsUse, explain, unreachable
from twolane.multiplexed import Multiplexer
from twolane.params import check_text
from twolane.prompts import RequestOptions, build_request
from twolane.security.target import Stamp, find_target
from twolane.service_status import Caller, ServiceStatus
from twolane.stream import AsyncStream, check_loop, running_loop
from twolane.v1 import inference_pb2, inference_pb2_grpc
from twolane.values import Completion, Model

ResponseT = TypeVar("ResponseT")
_CALLS_END_S = 3600.0  # how long calls go on over a channel whose certificate was renewed


class AsyncClient:
    """One connection to a cluster; any number of requests at once, from one event loop.

    Making one does nothing on the network: the first call connects, and so does `connect()`, which
    waits until the cluster answers. Every method raises errors of `twolane.errors` only (and
    `asyncio.CancelledError` when its own task is cancelled, which cancels the request).
    """

    def __init__(self, endpoint: str | None = None, *, config: ClientConfig | None = None) -> None:
        self._config = config or ClientConfig()
        self._target = find_target(endpoint, self._config)
        self._metadata = self._target.metadata
        self._is_closed = False
        self._opened: tuple[asyncio.AbstractEventLoop, grpc.aio.Channel] | None = None
        self._stamp: Stamp = ()  # of the certificates that the channel has
        self._replaced: list[asyncio.Task[None]] = []  # channels that end with their calls
        self._multiplexers: dict[grpc.aio.Channel, Multiplexer] = {}

    @property
    def endpoint(self) -> str:
        return self._target.endpoint

    async def connect(self, timeout_s: float | None = None) -> Self:
        """Return `self` as soon as the cluster's door is reachable, else raise UnavailableError."""
        bound_s = self._config.connect_timeout_s if timeout_s is None else timeout_s
        check_seconds("timeout_s", bound_s)
        try:
            async with asyncio.timeout(bound_s):
                await self._channel.channel_ready()
        except TimeoutError:
            if self._target.ca:
                await self.models()  # fails with the reason
            raise unreachable(self.endpoint, f"no connection within {bound_s:g} s") from None
        return self

    async def generate(
        self, prompt: str | None = None, **options: Unpack[RequestOptions]
    ) -> Completion:
        """The whole answer to exactly one of `prompt`, `token_ids=` and `messages=`."""
        async with self.stream(prompt, **options) as stream:
            return await stream.completion()

    def stream(self, prompt: str | None = None, **options: Unpack[RequestOptions]) -> AsyncStream:
        """The answer as it is generated. The request starts now; see `AsyncStream` for its end."""
        request = build_request(prompt, options)
        timeout_s = options.get("timeout_s")
        bound_s = self._config.timeout_s if timeout_s is None else timeout_s
        call = self._multiplexer.start(request, bound_s)
        return AsyncStream(
            call,
            request.request_id,
            partial(explain, endpoint=self.endpoint, timeout_s=bound_s, tls=self._tls),
        )

    async def cancel(self, request_id: str) -> bool:
        """Cancel a running request, whoever started it: its stream ends with CancelledError.

        False if no such request is running (any more).
        """
        check_text("request_id", request_id)
        if not request_id:
            raise InvalidRequestError("request_id is empty", field="request_id")
        request = inference_pb2.CancelRequest(request_id=request_id)
        response: inference_pb2.CancelResponse = await self._call(self._inference.Cancel, request)
        return response.found

    async def models(self) -> list[Model]:
        """The models that the cluster serves."""
        request = inference_pb2.ListModelsRequest()
        response = await self._call(self._inference.ListModels, request)
        return [Model.from_proto(model) for model in response.models]

    async def status(self, submission_ids: Sequence[str] = ()) -> ServiceStatus:
        """Whether and what the cluster serves, and how far these submissions are. All else is for
        operators: `twolane.AdminClient`."""
        for submission_id in submission_ids:
            check_text("submission_ids", submission_id)
        request = inference_pb2.GetStatusRequest(submission_ids=submission_ids)
        return ServiceStatus.from_proto(await self._call(self._inference.GetStatus, request))

    async def who_am_i(self) -> Caller:
        """Who the cluster takes this client for, and what is left of its tenant's quotas."""
        request = inference_pb2.WhoAmIRequest()
        return Caller.from_proto(await self._call(self._inference.WhoAmI, request))

    async def close(self) -> None:
        """Cancel what still runs and hang up. May be called twice; no call is possible after."""
        if self._opened is None or self._opened[0].is_closed():  # then its calls are over, too
            self._is_closed = True
            return
        loop, channel = self._opened
        check_loop(loop)
        self._is_closed = True
        for multiplexer in self._multiplexers.values():
            await multiplexer.close()
        await channel.close()
        for task in self._replaced:
            task.cancel()
        await asyncio.gather(*self._replaced, return_exceptions=True)

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
    def _channel(self) -> grpc.aio.Channel:
        """Made late: it belongs to the event loop that runs when it is first used."""
        if self._is_closed:
            raise InvalidRequestError("this client is closed")
        if self._opened is None:
            self._stamp = self._target.stamp()
            self._opened = (running_loop(), self._target.channel())
        loop, channel = self._opened
        check_loop(loop)
        stamp = self._target.stamp()
        if stamp and stamp != self._stamp:  # our certificate has been renewed
            ended = asyncio.create_task(channel.close(_CALLS_END_S), name="replaced-channel")
            self._replaced = [task for task in self._replaced if not task.done()] + [ended]
            self._stamp = stamp
            if channel in self._multiplexers:
                self._multiplexers[channel].retire()
            channel = self._target.channel()
            self._opened = (loop, channel)
        return channel

    @property
    def _multiplexer(self) -> Multiplexer:
        """Of the channel that takes requests now."""
        channel = self._channel
        multiplexer = self._multiplexers.get(channel)
        if multiplexer is None:
            inference = inference_pb2_grpc.InferenceServiceStub(channel)
            multiplexer = self._multiplexers[channel] = Multiplexer(
                partial(inference.Multiplex, metadata=self._metadata),
                lambda request, timeout_s: inference.Generate(
                    request, timeout=timeout_s, metadata=self._metadata
                ),
            )
        return multiplexer

    @property
    def _tls(self) -> TlsUse:
        return TlsUse(str(self._target.ca), str(self._target.cert))

    @property
    def _inference(self) -> inference_pb2_grpc.InferenceServiceStub:
        return inference_pb2_grpc.InferenceServiceStub(self._channel)

    async def _call(
        self, method: Callable[..., Awaitable[ResponseT]], request: object
    ) -> ResponseT:
        bound_s = self._config.call_timeout_s
        try:
            return await method(request, timeout=bound_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise explain(
                error, endpoint=self.endpoint, timeout_s=bound_s, tls=self._tls
            ) from error
