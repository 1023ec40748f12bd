"""An OpenAI-style server on a real HTTP stack (uvicorn) that answers as scripted.

Prompts are read one at a time, each for `service_s`: a queue whose capacity is known. Then tokens
come every `gap_s`, `together` in one event.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn


@dataclass
class CompletionDouble:
    """`usage`: "each" event tells it, the "last", or "none". `trouble`: "refuse", "error" (in
    mid-stream), "cut" (the connection), "short" (an answer), "nonsense"."""

    service_s: float = 0.0
    gap_s: float = 0.0
    together: int = 1
    usage: str = "each"
    trouble: str = ""
    tells_lengths: bool = True
    n_read: Callable[[], int] | None = None  # events; each waits until those before are read
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/v1/models":
            model: dict[str, Any] = {"id": "double"}
            if self.tells_lengths:
                model |= {"max_model_len": 256, "vocab_size": 100}
            await _answer(send, 200, json.dumps({"data": [model]}).encode())
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        request = json.loads(body)
        self.requests.append(request)
        if self.trouble == "refuse":
            await _answer(send, 429, b"{}")
            return
        async with self._reading:
            await asyncio.sleep(self.service_s)
        await self._stream(send, request["max_tokens"] - (self.trouble == "short"))

    async def _stream(self, send: Any, n_tokens: int) -> None:
        await send(_start(200, b"text/event-stream"))
        n_said = n_events = 0
        while n_said < n_tokens:
            if n_said:
                await asyncio.sleep(self.gap_s * self.together)
            while self.n_read is not None and self.n_read() < n_events:
                await asyncio.sleep(0.001)
            n_events += 1
            n_said = min(n_said + self.together, n_tokens)
            choice = {"index": 0, "text": "x", "finish_reason": None}
            event: dict[str, Any] = {"choices": [choice], "usage": None}
            if self.usage == "each":
                event["usage"] = {"completion_tokens": n_said}
            await _say(send, json.dumps(event).encode())
            if self.trouble == "cut":
                raise ConnectionError("as scripted")
            if self.trouble == "error":
                await _say(send, b'{"error": {"message": "as scripted"}}')
            if self.trouble == "nonsense":
                await _say(send, b"[1, 2")
        await _say(send, b'{"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}')
        if self.usage == "last":
            await _say(send, b'{"choices": [], "usage": {"completion_tokens": %d}}' % n_tokens)
        await _say(send, b"[DONE]")
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _say(send: Any, data: bytes) -> None:
    await send({"type": "http.response.body", "body": b"data: " + data + b"\n\n",
                "more_body": True})  # fmt: skip


async def _answer(send: Any, status: int, body: bytes) -> None:
    await send(_start(status, b"application/json"))
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _start(status: int, kind: bytes) -> dict[str, Any]:
    headers = [(b"content-type", kind)]
    return {"type": "http.response.start", "status": status, "headers": headers}


@contextmanager
def serve(double: CompletionDouble) -> Iterator[CompletionDouble]:
    """On a free port of the loopback, in a thread, to the end of the block."""
    config = uvicorn.Config(
        double, host="127.0.0.1", port=0, log_level="critical", ws="none", lifespan="off",
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        double.url = f"http://127.0.0.1:{port}"
        yield double
    finally:
        server.should_exit = True
        thread.join()
