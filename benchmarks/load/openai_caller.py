"""Calls an OpenAI-style server: streamed completions of token-id prompts.

aiohttp on uvloop: 65,000 events a second of processor time, measured with usage in every event and
an event in each TCP segment. Of the ways tried, counting lines alone: 50,000 so, 28,000 without
uvloop, httpx 17,000 to 20,000 with it and 12,000 without.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp

from benchmarks.load.caller import Answer, now_s
from benchmarks.load.completion_stream import CompletionStream
from benchmarks.load.event_stream import EventReader

_CONNECT_S = 30.0
# Shorter than uvicorn's 5 s: a connection that the server is just closing is not used again.
_KEEPALIVE_S = 3.0


@dataclass(frozen=True, slots=True)
class Completion:
    """A request's body as it is sent, and how many tokens it asks for."""

    body: bytes
    n_output: int


class OpenAiCaller:
    """Implements `benchmarks.load.caller.Caller` over HTTP/1.1, as many connections as requests."""

    def __init__(self, url: str, model: str) -> None:
        self._url = url.rstrip("/").removesuffix("/v1") + "/v1"
        self._model = model

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
            headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.close()

    def build(self, token_ids: Sequence[int], n_output: int, seed: int) -> Completion:
        body = {
            "model": self._model,
            "prompt": list(token_ids),
            "max_tokens": n_output,
            "temperature": 0.0,
            "seed": seed,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        return Completion(json.dumps(body, separators=(",", ":")).encode(), n_output)

    async def call(self, message: Completion, answer: Answer, timeout_s: float) -> None:
        limits = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_S)
        events, stream = EventReader(), CompletionStream(answer, message.n_output)
        url = f"{self._url}/completions"
        try:
            async with self._session.post(url, data=message.body, timeout=limits) as response:
                if response.status != 200:
                    answer.failure = f"HTTP_{response.status}"
                    return
                async for received in response.content.iter_any():
                    at_s = now_s()
                    for data in events.feed(received):
                        stream.take(data, at_s)
        except TimeoutError:
            answer.failure = "DEADLINE_EXCEEDED"
        except aiohttp.ClientError:
            answer.failure = "UNAVAILABLE"
        if not answer.failure and not stream.is_done:
            answer.failure = "CUT_OFF"

    async def models(self, timeout_s: float) -> list[dict[str, Any]]:
        """What /v1/models lists. Raises aiohttp.ClientError, TimeoutError, ValueError."""
        limits = aiohttp.ClientTimeout(total=timeout_s)
        async with self._session.get(f"{self._url}/models", timeout=limits) as response:
            response.raise_for_status()
            listed = await response.json()
        if not isinstance(listed, dict) or not isinstance(listed.get("data"), list):
            raise ValueError("no list of models")
        return list(listed["data"])
