"""Makes a job of a client's message: checks it, tokenizes text, applies the model's bounds, draws a
seed."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from twolane.errors import (
    DeadlineError,
    InvalidParameterError,
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
    UnknownModelError,
)
from twolane.router.config import RouterConfig
from twolane.router.dispatch.affinity import as_array, prefix_hashes
from twolane.router.dispatch.board import Board
from twolane.router.limits import check_shape, check_tenant, fit, fit_answer_so_far
from twolane.router.members.model import ModelFacts
from twolane.router.requests.request import Job
from twolane.router.text.codec import TextCodec
from twolane.router.text.model_defaults import NO_DEFAULTS
from twolane.security.identity import ANONYMOUS, Identity
from twolane.v1 import inference_pb2

NO_DEADLINE_S = 10 * 365 * 86_400.0  # no deadline may arrive from gRPC as a very long time

ArgumentT = TypeVar("ArgumentT")
ResultT = TypeVar("ResultT")


def deadline_of(arrived: float, time_left_s: float | None) -> float | None:
    """The deadline on the clock of `arrived`; None if there is none, which includes ten years or
    more. Raises `InvalidParameterError` if the time is not a number."""
    if time_left_s is None or time_left_s > NO_DEADLINE_S:
        return None
    if math.isnan(time_left_s):
        raise InvalidParameterError("timeout_s", time_left_s, "a number")
    return arrived + time_left_s


class Intake:
    """Makes jobs. Raises `TwolaneError`s with the field, its value and the limit."""

    def __init__(self, board: Board, text: TextCodec | None) -> None:
        self._board = board
        self._members = board.members
        self._text = text
        self.has_ended = False  # the router is stopping, and has ended its answers

    def check_ended(self) -> None:
        """Raise `UnavailableError` if the router has ended its answers: one that began now would
        get no end."""
        if self.has_ended:
            raise UnavailableError("the router is stopping")

    @property
    def _config(self) -> RouterConfig:
        """The one that holds now: operators change it."""
        return self._board.config

    async def make_job(
        self,
        message: inference_pb2.GenerateRequest,
        arrived: float,
        time_left_s: float | None,
        caller: Identity = ANONYMOUS,
        *,
        default_max_tokens: int | None = None,
    ) -> Job:
        """Make a job. May wait for the tokenization of a long text on a thread, and up to
        `unavailable_after_s` for workers of a configured model."""
        limits = self._config.limits
        check_tenant(message.tenant, caller)
        params = check_shape(message, limits, has_text=self._text is not None)
        deadline = deadline_of(arrived, time_left_s)
        token_ids = await self._token_ids(message)
        model = await self._model(message.model, deadline)
        numbers = as_array(token_ids)
        defaults = self._config.defaults.get(model.name, NO_DEFAULTS)
        params = defaults.applied(params, message.sampling)
        bounds = (default_max_tokens, defaults.max_tokens, limits.default_max_tokens)
        if_unset = min(bound for bound in bounds if bound is not None)
        params = fit(numbers, params, model, limits, if_unset=if_unset)
        if params.seed is None:
            params = replace(params, seed=secrets.randbits(63))
        job = Job(
            request_id=message.request_id or secrets.token_hex(8),
            model=model.name,
            token_ids=token_ids,
            params=params,
            arrived=arrived,
            priority=message.priority,
            deadline=deadline,
            caller=caller,
            prefix_hashes=prefix_hashes(numbers, caller.tenant),
        )
        if not message.HasField("resume"):
            return job
        so_far = message.resume
        fit_answer_so_far(so_far.token_ids, model, limits)
        return replace(
            job,
            submission_id=so_far.submission_id,
            resume_token=so_far.resume_token,
            fence=so_far.takeover,
        )

    async def _token_ids(self, message: inference_pb2.GenerateRequest) -> Sequence[int]:
        """The prompt's token ids in protobuf's form: four bytes each, copied into an Assign without
        conversion."""
        if message.WhichOneof("prompt") == "token_ids":
            return message.token_ids.ids
        assert self._text is not None, "check_shape refuses text without a tokenizer"
        if message.WhichOneof("prompt") == "text":
            self._refuse_endless(message.text)
            ids = await self._by_size(len(message.text), self._text.encode, message.text)
        else:
            turns = [{"role": m.role, "content": m.content} for m in message.chat.messages]
            n_chars = sum(len(turn["role"]) + len(turn["content"]) for turn in turns)
            # the rendered text is longer, so it is checked again
            rendered = await self._by_size(n_chars, self._text.render_chat, turns)
            self._refuse_endless(rendered)
            ids = await self._by_size(len(rendered), self._text.encode_rendered, rendered)
        return inference_pb2.TokenIds(ids=ids).ids

    def _refuse_endless(self, text: str) -> None:
        """Refuse a text that surely has more tokens than any model takes, before the seconds that
        tokenizing it would cost."""
        assert self._text is not None
        contexts = [model.max_context_tokens for model in self._members.models()]
        bound = min([self._config.limits.prompt_tokens, *([max(contexts)] if contexts else [])])
        if (least := self._text.least_tokens(text)) > bound:
            raise InvalidRequestError(
                f"the prompt has {least} tokens or more; at most {bound} are taken",
                field="prompt",
                metadata={"value": str(least), "bound": str(bound)},
            )

    async def _by_size(
        self, n_chars: int, work: Callable[[ArgumentT], ResultT], argument: ArgumentT
    ) -> ResultT:
        """Call `work`: here if the text is short, else on a thread."""
        if n_chars <= self._config.inline_text_chars:
            return work(argument)
        return await asyncio.get_running_loop().run_in_executor(None, work, argument)

    async def _model(self, name: str, deadline: float | None) -> ModelFacts:
        loop = asyncio.get_running_loop()
        started = loop.time()
        while True:
            self.check_ended()
            models = self._members.models()
            if not name and len(models) > 1:
                names = ", ".join(sorted(model.name for model in models))
                raise InvalidRequestError(
                    f"the cluster serves {len(models)} models ({names}); name one", field="model"
                )
            for model in models:
                if name in ("", model.name):
                    return model
            expected = {member.announce.model for member in self._members} | {*self._config.models}
            if name and expected and name not in expected:
                raise UnknownModelError(
                    f"no worker serves {name!r}; known: {', '.join(sorted(expected))}",
                    metadata={"model": name},
                )
            now = loop.time()
            if deadline is not None and now >= deadline:
                raise DeadlineError("the deadline passed while waiting for workers of the model")
            waited_s, bounds = now - started, self._config.admission
            starts = self._board.wakes()
            if waited_s >= (bounds.cold_start_s if starts else bounds.unavailable_after_s):
                raise UnavailableError(
                    f"no worker of {name or 'any model'} appeared in {waited_s:.1f} s",
                    metadata={"model": name},
                )
            if self._board.n_expecting >= bounds.max_queued:
                text = f"{self._board.n_expecting} requests wait for a worker of their model"
                raise OverloadedError(text, retry_after_s=bounds.retry_after_max_s)
            self._board.n_expecting += 1
            try:
                await asyncio.sleep(self._config.tick_s)
            finally:
                self._board.n_expecting -= 1
