"""From a client's message to a job: checks, text to ids, the model's bounds, a seed."""

from __future__ import annotations

import asyncio
import math
import secrets
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from twolane.errors import (
    DeadlineError,
    InvalidParameterError,
    InvalidRequestError,
    UnavailableError,
    UnknownModelError,
)
from twolane.router.config import RouterConfig
from twolane.router.dispatch.affinity import prefix_hashes
from twolane.router.limits import check_shape, check_tenant, fit
from twolane.router.members.membership import Membership
from twolane.router.members.model import ModelFacts
from twolane.router.requests.request import Job
from twolane.router.text.codec import TextCodec
from twolane.router.text.model_defaults import NO_DEFAULTS
from twolane.security.identity import ANONYMOUS, Identity
from twolane.v1 import inference_pb2

NO_DEADLINE_S = 10 * 365 * 86_400.0  # gRPC's "none" may come as a very long time

ArgumentT = TypeVar("ArgumentT")
ResultT = TypeVar("ResultT")


def deadline_of(arrived: float, time_left_s: float | None) -> float | None:
    """On the clock of `arrived`; None for none, which ten years are. Raises
    `InvalidParameterError` for what is no number."""
    if time_left_s is None or time_left_s > NO_DEADLINE_S:
        return None
    if math.isnan(time_left_s):
        raise InvalidParameterError("timeout_s", time_left_s, "a number")
    return arrived + time_left_s


class Intake:
    """Makes jobs. Raises `TwolaneError`s that name the field, the figure and the limit."""

    def __init__(self, config: RouterConfig, members: Membership, text: TextCodec | None) -> None:
        self._config = config
        self._members = members
        self._text = text

    async def make_job(
        self,
        message: inference_pb2.GenerateRequest,
        arrived: float,
        time_left_s: float | None,
        caller: Identity = ANONYMOUS,
        *,
        default_max_tokens: int | None = None,
    ) -> Job:
        """May wait: for a long text's ids (off the loop), and, up to `unavailable_after_s`, for
        workers of a model that is expected."""
        limits = self._config.limits
        check_tenant(message.tenant, caller)
        params = check_shape(message, limits, has_text=self._text is not None)
        deadline = deadline_of(arrived, time_left_s)
        token_ids = await self._token_ids(message)
        model = await self._model(message.model, deadline)
        numbers = array("i", token_ids[:])  # of a list: half the time
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
        return replace(
            job,
            submission_id=so_far.submission_id,
            resume_token=so_far.resume_token,
            fence=so_far.takeover,
        )

    async def _token_ids(self, message: inference_pb2.GenerateRequest) -> Sequence[int]:
        """As protobuf holds them: four bytes each, and copied into an Assign without a look."""
        if message.WhichOneof("prompt") == "token_ids":
            return message.token_ids.ids
        assert self._text is not None, "check_shape refuses text without a tokenizer"
        if message.WhichOneof("prompt") == "text":
            ids = await self._by_size(len(message.text), self._text.encode, message.text)
        else:
            turns = [{"role": m.role, "content": m.content} for m in message.chat.messages]
            n_chars = sum(len(turn["role"]) + len(turn["content"]) for turn in turns)
            # what the template makes of them is longer still: it is measured again
            rendered = await self._by_size(n_chars, self._text.render_chat, turns)
            ids = await self._by_size(len(rendered), self._text.encode_rendered, rendered)
        return inference_pb2.TokenIds(ids=ids).ids

    async def _by_size(
        self, n_chars: int, work: Callable[[ArgumentT], ResultT], argument: ArgumentT
    ) -> ResultT:
        """Do `work`: here if the text is short, else on a thread."""
        if n_chars <= self._config.inline_text_chars:
            return work(argument)
        return await asyncio.get_running_loop().run_in_executor(None, work, argument)

    async def _model(self, name: str, deadline: float | None) -> ModelFacts:
        loop = asyncio.get_running_loop()
        started = loop.time()
        while True:
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
            waited_s = now - started
            if waited_s >= self._config.admission.unavailable_after_s:
                raise UnavailableError(
                    f"no worker of {name or 'any model'} appeared in {waited_s:.1f} s",
                    metadata={"model": name},
                )
            await asyncio.sleep(self._config.tick_s)
