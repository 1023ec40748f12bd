"""The answers to one call, as one document or as the events of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from twolane.router.doors.http.choice import Choice
from twolane.router.doors.http.request import StreamOptions
from twolane.v1 import inference_pb2

DONE = b"data: [DONE]\n\n"


class Reply:
    """Has one choice or more, and counts the tokens of all together. `firsts` are the router's
    first responses, one for each choice; `created` is Unix time."""

    def __init__(
        self,
        choices: Sequence[Choice],
        firsts: Sequence[inference_pb2.GenerateResponse],
        usage: StreamOptions,
        *,
        call_id: str,
        created: int,
    ) -> None:
        kind = choices[0]
        head = {"id": kind.id_prefix + call_id, "created": created, "model": firsts[0].model}
        self._choices = choices
        self._usage_wanted = usage
        self._head = {**head, "object": kind.object_name}
        self._chunk_head = {**head, "object": kind.chunk_object_name}
        self._n_prompt = sum(first.prompt_tokens for first in firsts)
        self._n_tokens = 0
        self._n_cached = 0
        self._n_running = len(choices)

    @property
    def is_over(self) -> bool:
        """Whether every choice has had its last response."""
        return not self._n_running

    def events(self, index: int, response: inference_pb2.GenerateResponse) -> bytes:
        """What one response of the router to choice `index` is to the client, in server-sent
        events; nothing if it says nothing. The last of all brings the usage, if that was asked for,
        and `DONE`."""
        self._count(response)
        choice = self._choices[index].chunk(response)
        events = b"" if choice is None else event(self._chunk(choice))
        if not self.is_over:
            return events
        if self._usage_wanted.include_usage:
            events += event({**self._chunk_head, "choices": [], "usage": self._usage()})
        return events + DONE

    def whole(self, answers: Sequence[Sequence[inference_pb2.GenerateResponse]]) -> bytes:
        """All responses after the first, for each choice, as one JSON document."""
        shown = []
        for choice, responses in zip(self._choices, answers, strict=True):
            together = _together(responses)
            self._count(together)
            shown.append(choice.whole(together))
        return msgspec.json.encode({**self._head, "choices": shown, "usage": self._usage()})

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk: dict[str, Any] = {**self._chunk_head, "choices": [choice]}
        if self._usage_wanted.continuous_usage_stats:
            chunk["usage"] = self._usage()
        elif self._usage_wanted.include_usage:
            chunk["usage"] = None
        return chunk

    def _count(self, response: inference_pb2.GenerateResponse) -> None:
        self._n_tokens += len(response.tokens)
        if response.finish_reason:
            self._n_running -= 1
            self._n_cached += response.ledger.cached_tokens

    def _usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self._n_prompt,
            "completion_tokens": self._n_tokens,
            "total_tokens": self._n_prompt + self._n_tokens,
            "prompt_tokens_details": {"cached_tokens": self._n_cached},
        }


def event(value: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _together(
    responses: Sequence[inference_pb2.GenerateResponse],
) -> inference_pb2.GenerateResponse:
    last = responses[-1]
    return inference_pb2.GenerateResponse(
        text="".join(response.text for response in responses),
        tokens=[token for response in responses for token in response.tokens],
        finish_reason=last.finish_reason,
        ledger=last.ledger,
    )
