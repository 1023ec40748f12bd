"""An answer in OpenAI's shape: whole, or as the events of a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from router.http.logprobs import Logprobs
from router.http.request import CompletionRequest
from twolane.v1 import inference_pb2, sampling_pb2

DONE = b"data: [DONE]\n\n"
_FINISH_REASONS = {
    sampling_pb2.FINISH_REASON_UNSPECIFIED: None,
    sampling_pb2.FINISH_REASON_STOP: "stop",
    sampling_pb2.FINISH_REASON_LENGTH: "length",
}


class Completion:
    """One answer as it grows; `first` is the router's first response, `created` in Unix time."""

    def __init__(
        self,
        asked: CompletionRequest,
        first: inference_pb2.GenerateResponse,
        created: int,
        token_bytes: Callable[[int], bytes],
    ) -> None:
        self._asked = asked
        self._logprobs = None if asked.logprobs is None else Logprobs(token_bytes)
        self._head = {
            "id": f"cmpl-{first.request_id}",
            "object": "text_completion",
            "created": created,
            "model": first.model,
        }
        self._n_prompt = first.prompt_tokens
        self._n_tokens = 0

    def events(self, response: inference_pb2.GenerateResponse) -> bytes:
        """What one response of the router is to the client, in server-sent events; nothing if it
        says nothing. The last one brings the usage, if that was asked for, and `DONE`."""
        self._n_tokens += len(response.tokens)
        if not (response.tokens or response.text or response.finish_reason):
            return b""
        wants = self._asked.usage
        choice = self._choice(response.text, list(response.tokens), response.finish_reason)
        chunk: dict[str, Any] = {**self._head, "choices": [choice]}
        if wants.continuous_usage_stats:
            chunk["usage"] = self._usage(response.ledger)
        elif wants.include_usage:
            chunk["usage"] = None
        events = event(chunk)
        if response.finish_reason:
            if wants.include_usage:
                usage = self._usage(response.ledger)
                events += event({**self._head, "choices": [], "usage": usage})
            events += DONE
        return events

    def whole(self, responses: list[inference_pb2.GenerateResponse]) -> bytes:
        """All responses after the first as one JSON document."""
        tokens = [token for response in responses for token in response.tokens]
        self._n_tokens = len(tokens)
        text, last = "".join(response.text for response in responses), responses[-1]
        choice = self._choice(text, tokens, last.finish_reason)
        return msgspec.json.encode(
            {**self._head, "choices": [choice], "usage": self._usage(last.ledger)}
        )

    def _choice(
        self,
        text: str,
        tokens: list[inference_pb2.Token],
        finish_reason: sampling_pb2.FinishReason,
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": 0,
            "text": text,
            "logprobs": self._logprobs.of(tokens) if self._logprobs else None,
            "finish_reason": _FINISH_REASONS[finish_reason],
        }
        if self._asked.return_token_ids:
            choice["token_ids"] = [token.token_id for token in tokens]
        return choice

    def _usage(self, ledger: sampling_pb2.Ledger) -> dict[str, Any]:
        return {
            "prompt_tokens": self._n_prompt,
            "completion_tokens": self._n_tokens,
            "total_tokens": self._n_prompt + self._n_tokens,
            "prompt_tokens_details": {"cached_tokens": ledger.cached_tokens},
        }


def event(value: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
