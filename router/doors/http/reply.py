"""Formats the answers to one call, as one document or as the events of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from twolane.router.doors.http.again import place_line
from twolane.router.doors.http.choices.choice import Choice
from twolane.router.doors.http.request import StreamOptions
from twolane.router.requests.piece import Piece

DONE = b"data: [DONE]\n\n"
_USAGE = (
    b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
    b'"prompt_tokens_details":{"cached_tokens":%d}}'
)


class Reply:
    """One or more choices, with a common count of tokens. `created` is Unix time; `n_prompt` is the
    number of tokens of all prompts. `place`, for a single choice, is the number of tokens and bytes
    of text that the client has; with it, events have ids, which are positions."""

    __slots__ = (
        "_after_choice",
        "_before_choice",
        "_choices",
        "_has_ids",
        "_head",
        "_n_cached",
        "_n_prompt",
        "_n_running",
        "_n_text_bytes",
        "_n_tokens",
        "_usage_wanted",
    )

    def __init__(
        self,
        choices: Sequence[Choice],
        usage: StreamOptions,
        *,
        call_id: str,
        created: int,
        model: str,
        n_prompt: int,
        place: tuple[int, int] | None = None,
    ) -> None:
        kind = choices[0]
        head = {"id": kind.id_prefix + call_id, "created": created, "model": model}
        chunk_head = msgspec.json.encode({**head, "object": kind.chunk_object_name})
        self._choices = tuple(choices)
        self._usage_wanted = usage
        self._head = {**head, "object": kind.object_name}
        self._before_choice = b"data: " + chunk_head[:-1] + b',"choices":['
        self._after_choice = b'],"usage":null}\n\n' if usage.include_usage else b"]}\n\n"
        self._n_prompt = n_prompt
        self._n_tokens, self._n_text_bytes = place or (0, 0)
        self._has_ids = place is not None
        self._n_cached = 0
        self._n_running = len(choices)

    @property
    def is_over(self) -> bool:
        """Whether every choice has had its last piece."""
        return not self._n_running

    def events(self, index: int, piece: Piece) -> bytes:
        """One piece of choice `index` as server-sent events; empty if it adds nothing. After the
        last piece of all, also the usage, if requested, and `[DONE]`."""
        self._count(piece)
        choice = self._choices[index].chunk(piece)
        events = b"" if choice is None else self._before_choice + choice + self._end_of_chunk()
        if self._has_ids and events:
            events = place_line(self._n_tokens, self._n_text_bytes) + events
        if not self.is_over:
            return events
        if self._usage_wanted.include_usage:
            events += self._before_choice + self._end_with_usage()
        return events + DONE

    def whole(self, answers: Sequence[Piece]) -> bytes:
        """The whole answers of all choices, as one JSON document."""
        shown = []
        for choice, piece in zip(self._choices, answers, strict=True):
            self._count(piece)
            shown.append(choice.whole(piece))
        usage = msgspec.Raw(self._usage())
        return msgspec.json.encode({**self._head, "choices": shown, "usage": usage})

    def _end_of_chunk(self) -> bytes:
        if self._usage_wanted.continuous_usage_stats:
            return self._end_with_usage()
        return self._after_choice

    def _end_with_usage(self) -> bytes:
        return b'],"usage":%b}\n\n' % self._usage()

    def _count(self, piece: Piece) -> None:
        self._n_tokens += len(piece.token_ids)
        if self._has_ids:
            self._n_text_bytes += len(piece.text.encode())
        if piece.ledger is not None:
            self._n_running -= 1
            self._n_cached += piece.ledger.cached_tokens

    def _usage(self) -> bytes:
        n_prompt, n_tokens = self._n_prompt, self._n_tokens
        return _USAGE % (n_prompt, n_tokens, n_prompt + n_tokens, self._n_cached)


def event(value: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
