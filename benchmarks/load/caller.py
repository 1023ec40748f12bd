"""The client side of a server, for any protocol: build a request, send it, record tokens.

HOST:PORT               twolane's own gRPC, a call for each request
sdk://HOST:PORT         the same, all requests of a process on one stream, as the SDK sends them
http://HOST:PORT        an OpenAI-style server: twolane's HTTP door, vLLM, SGLang, …
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

SDK = "sdk://"


class Answer:
    """Filled while one request runs. Times are seconds of CLOCK_MONOTONIC since `zero_s`.
    `on_first` is called once, when the first token arrives."""

    __slots__ = ("_on_first", "_zero_s", "failure", "ledger", "times_s")

    def __init__(self, zero_s: float, on_first: Callable[[], None] = lambda: None) -> None:
        self._zero_s = zero_s
        self._on_first = on_first
        self.times_s: list[float] = []
        self.failure = ""
        self.ledger: Mapping[str, float] = {}

    def note(self, n_tokens: int, at_s: float) -> None:
        """`n_tokens` arrived in one message, at that time of the clock."""
        if not self.times_s and n_tokens:
            self._on_first()
        self.times_s.extend([at_s - self._zero_s] * n_tokens)

    def end(self, n_output: int) -> None:
        """The call has ended: an answer of another length than requested is a failure."""
        if not self.failure and len(self.times_s) != n_output:
            self.failure = "WRONG_LENGTH"


class Caller(Protocol):
    """One connection, or a pool of them, to one server. Entering it connects."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def build(self, token_ids: Sequence[int], n_output: int, seed: int) -> Any:
        """A request, ready to be sent: greedy, and with the answer's length forced."""

    async def call(self, message: Any, answer: Answer, timeout_s: float) -> None:
        """Send the request. Any error of the server becomes `answer.failure`."""


def now_s() -> float:
    """CLOCK_MONOTONIC: one clock for all processes of a host. An event loop's own time may be
    coarser (uvloop's has whole milliseconds)."""
    return time.monotonic()


def is_http(endpoint: str) -> bool:
    return endpoint.startswith(("http://", "https://"))


def make_caller(endpoint: str, model: str) -> Caller:
    """The caller for the endpoint's protocol, not yet connected."""
    if is_http(endpoint):
        from benchmarks.load.openai_caller import OpenAiCaller

        return OpenAiCaller(endpoint, model)
    from benchmarks.load.grpc_caller import GrpcCaller

    return GrpcCaller(endpoint.removeprefix(SDK), is_multiplexed=endpoint.startswith(SDK))
