"""Checks requests against limits. Every refusal has the actual value and the limit.

There are two steps, because the second one needs the model: `check_shape` checks the message alone,
`fit` the token ids, the context and the pages of the model. A resume has `check_answer_so_far` and
`fit_answer_so_far`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from twolane.attempt_number import MOST_FENCE
from twolane.errors import (
    InvalidParameterError,
    InvalidRequestError,
    PermissionDeniedError,
    UnimplementedError,
    short,
)
from twolane.params import SamplingParams
from twolane.router.config import LimitsConfig
from twolane.router.members.model import ModelFacts, pages_for
from twolane.rpc.params import params_from_proto
from twolane.security.identity import Identity
from twolane.v1 import inference_pb2

RESERVED_FIELDS = ("adapter", "model_version", "constraint")
MAX_REQUEST_ID_CHARS = 64
RESUME_TOKEN_BYTES = 16
MAX_ROLE_CHARS = 64
NO_TOKENIZER = "the model's tokenizer.json, which is not there (tokenizer.model is not read)"


def check_shape(
    request: inference_pb2.GenerateRequest, limits: LimitsConfig, *, has_text: bool
) -> SamplingParams:
    """Make all checks that do not need the model. Returns the sampling options.

    Raises `InvalidRequestError`, or `UnimplementedError` naming a reserved field.
    """
    _refuse_unknown(request)
    for name in RESERVED_FIELDS:
        if request.HasField("constraint") if name == "constraint" else getattr(request, name):
            raise UnimplementedError(
                f"{name} is reserved for a later version; leave it unset", metadata={"field": name}
            )
    if request.n > 1:
        raise UnimplementedError(
            f"n is {request.n}; more than one sample is reserved for a later version",
            metadata={"field": "n", "value": str(request.n), "bound": "0 or 1"},
        )
    if request.n < 0:
        raise InvalidParameterError("n", request.n, "0 or 1")
    _at_most("len(request_id)", len(request.request_id), MAX_REQUEST_ID_CHARS)
    if request.request_id and not request.request_id.isprintable():  # it is shown at terminals
        raise InvalidParameterError("request_id", request.request_id, "printable characters")
    if abs(request.priority) > limits.priority:
        bound = f"{-limits.priority} to {limits.priority}"
        raise InvalidParameterError("priority", request.priority, bound)
    params = params_from_proto(request.sampling)
    _at_most("len(stop)", len(params.stop), limits.stop_strings)
    if params.max_tokens is not None:
        _at_most("max_tokens", params.max_tokens, limits.max_tokens)
    if params.stop and not has_text:
        raise InvalidRequestError(
            f"stop strings need {NO_TOKENIZER}; use stop_token_ids",
            field="stop",
        )
    _check_prompt(request, limits, has_text=has_text)
    return params


def check_resume(request: inference_pb2.ResumeRequest, caller: Identity) -> None:
    """Check a resume. Raises `InvalidRequestError`, or `PermissionDeniedError` for another tenant's
    answer."""
    check_tenant(request.tenant, caller)
    if bool(request.submission_id) == bool(request.request_id):
        text = "name an answer either by submission_id or by request_id"
        raise InvalidRequestError(text, field="submission_id")
    field = "submission_id" if request.submission_id else "request_id"
    check_id_length(field, getattr(request, field))
    _check_takeover(request.resume_token, request.takeover, 0)
    for name in ("n_tokens", "n_text_bytes"):
        if getattr(request, name) < 0:
            raise InvalidParameterError(name, getattr(request, name), "at least 0")


def check_answer_so_far(resume: inference_pb2.AnswerSoFar) -> None:
    """Check the received part of an answer, but for its tokens, for which see `fit_answer_so_far`.
    Raises `InvalidRequestError`."""
    check_id_length("resume.submission_id", resume.submission_id)
    _check_takeover(resume.resume_token, resume.takeover, 1)
    if resume.n_text_bytes < 0:
        raise InvalidParameterError("resume.n_text_bytes", resume.n_text_bytes, "at least 0")


def check_id_length(field: str, name: str) -> None:
    """Check the length of a request's or a submission's id. Raises `InvalidRequestError`."""
    if not 0 < len(name) <= MAX_REQUEST_ID_CHARS:
        bound = f"1 to {MAX_REQUEST_ID_CHARS}"
        raise InvalidParameterError(f"len({field})", len(name), bound)


def _check_takeover(token: bytes, takeover: int, least: int) -> None:
    if len(token) != RESUME_TOKEN_BYTES:
        raise InvalidParameterError("len(resume_token)", len(token), str(RESUME_TOKEN_BYTES))
    if not least <= takeover <= MOST_FENCE:
        raise InvalidParameterError("takeover", takeover, f"{least} to {MOST_FENCE}")


def check_tenant(named: str, caller: Identity) -> None:
    """Refuse a request that names a tenant other than its caller's. Raises
    `PermissionDeniedError`."""
    if named and named != caller.tenant:  # guard: tenant
        yours = f"yours says {caller.tenant!r}" if caller.tenant else "you show none"
        raise PermissionDeniedError(
            f"tenant is {short(named, 64)!r}; an API key or a certificate says whose "
            f"a request is, and {yours}: leave the field unset",
            metadata={"field": "tenant"},
        )


def _refuse_unknown(request: inference_pb2.GenerateRequest) -> None:
    """Refuse fields that this version does not know, which a newer client may send."""
    parts: list[tuple[str, Message]] = [("the request", request), ("sampling", request.sampling)]
    if request.WhichOneof("prompt") == "chat":
        parts.append(("chat", request.chat))
        parts += [(f"chat.messages[{i}]", turn) for i, turn in enumerate(request.chat.messages)]
    for where, part in parts:
        unknown = UnknownFieldSet(part)
        if len(unknown):
            number = unknown[0].field_number
            raise UnimplementedError(
                f"{where} has field {number}, which this version does not know; leave it unset",
                metadata={"field": where, "value": str(number)},
            )


def _check_prompt(
    request: inference_pb2.GenerateRequest, limits: LimitsConfig, *, has_text: bool
) -> None:
    kind = request.WhichOneof("prompt")
    if kind is None:
        raise InvalidRequestError("prompt is empty: set text, token_ids or chat", field="prompt")
    if kind == "token_ids":
        # before anything iterates over them
        _at_most("len(prompt tokens)", len(request.token_ids.ids), limits.prompt_tokens)
        if not request.token_ids.ids:
            raise InvalidRequestError("token_ids is empty; at least 1 is needed", field="token_ids")
        return
    if not has_text:
        raise InvalidRequestError(
            f"a prompt of kind {kind} needs {NO_TOKENIZER}; send token_ids",
            field=kind,
        )
    if kind == "text":
        if not request.text:
            raise InvalidRequestError(
                "the prompt is empty; at least 1 character is needed", field="text"
            )
        _at_most("len(prompt) in bytes", len(request.text.encode()), limits.prompt_bytes)
        return
    messages = request.chat.messages
    if not messages:
        raise InvalidRequestError("the chat is empty; at least 1 message is needed", field="chat")
    _at_most("len(chat.messages)", len(messages), limits.chat_messages)
    for at, message in enumerate(messages):
        if not message.role:
            raise InvalidRequestError(
                f"chat.messages[{at}].role is empty; it names the speaker", field="chat"
            )
        _at_most(f"len(chat.messages[{at}].role)", len(message.role), MAX_ROLE_CHARS)
    n_bytes = sum(len(m.role.encode()) + len(m.content.encode()) for m in messages)
    _at_most("len(chat) in bytes", n_bytes, limits.prompt_bytes)


def fit(
    token_ids: Sequence[int],
    params: SamplingParams,
    model: ModelFacts,
    limits: LimitsConfig,
    *,
    if_unset: int,
) -> SamplingParams:
    """Make all checks that depend on the model. Returns the options with `max_tokens` set: the
    client's value, or else `if_unset` or less, as far as it fits. Raises `InvalidRequestError` with
    the figures."""
    n_prompt = len(token_ids)
    if not n_prompt:
        raise InvalidRequestError("the prompt has no tokens; at least 1 is needed", field="prompt")
    _at_most("len(prompt tokens)", n_prompt, limits.prompt_tokens)
    for token_id in (min(token_ids), max(token_ids)):
        _check_id("token_ids", token_id, model)
    for token_id in params.stop_token_ids:
        _check_id("stop_token_ids", token_id, model)
    for token_id in params.logit_bias:
        _check_id("logit_bias token", token_id, model)
    room = model.max_context_tokens - n_prompt
    if room < 1:
        raise InvalidRequestError(
            f"the prompt has {n_prompt} tokens; {model.name} has a context of "
            f"{model.max_context_tokens}, and at least 1 must remain for the answer",
            field="prompt",
            metadata={
                "value": str(n_prompt),
                "bound": str(model.max_context_tokens - 1),
                "context": str(model.max_context_tokens),
            },
        )
    if n_prompt + 1 > model.room.n_tokens:
        raise _too_many_pages("prompt", n_prompt, 1, model)
    if params.max_tokens is None:
        most = min(room, limits.max_tokens, model.room.n_tokens - n_prompt)
        _at_most("min_tokens", params.min_tokens, most)
        return replace(params, max_tokens=max(min(if_unset, most), params.min_tokens))
    if params.max_tokens > room:
        raise InvalidRequestError(
            f"prompt ({n_prompt} tokens) + max_tokens ({params.max_tokens}) is "
            f"{n_prompt + params.max_tokens}; {model.name} has a context of "
            f"{model.max_context_tokens}",
            field="max_tokens",
            metadata={
                "value": str(params.max_tokens),
                "bound": f"at most {room}",
                "context": str(model.max_context_tokens),
            },
        )
    if n_prompt + params.max_tokens > model.room.n_tokens:
        raise _too_many_pages("max_tokens", n_prompt, params.max_tokens, model)
    return params


def fit_answer_so_far(token_ids: Sequence[int], model: ModelFacts, limits: LimitsConfig) -> None:
    """Check the tokens that a client has of an answer. There may be more than the request's
    `max_tokens`, which depends on the workers if it is unset. Raises `InvalidRequestError`."""
    _at_most("len(resume.token_ids)", len(token_ids), limits.max_tokens)
    if token_ids:
        for token_id in (min(token_ids), max(token_ids)):
            _check_id("resume.token_ids", token_id, model)


def _too_many_pages(
    field: str, n_prompt: int, max_tokens: int, model: ModelFacts
) -> InvalidRequestError:
    """The error of a request that needs too many pages. The decode worker would hold all of its
    tokens; if it is resumed, a prefill worker all but the last."""
    room, n_tokens = model.room, n_prompt + max_tokens
    role, pool = "decode", room.decode
    n_pages = pages_for(n_tokens, pool.page_tokens)
    if n_pages <= pool.n_pages:
        role, pool = "prefill", room.prefill
        n_pages = pages_for(n_tokens - 1, pool.page_tokens)
    return InvalidRequestError(
        f"the request needs {n_pages} pages (prompt {n_prompt} + max_tokens {max_tokens} tokens, "
        f"{pool.page_tokens} a page); the largest {role} worker of {model.name} has {pool.n_pages}",
        field=field,
        metadata={"value": str(n_pages), "bound": str(pool.n_pages)},
    )


def _check_id(name: str, token_id: int, model: ModelFacts) -> None:
    if not 0 <= token_id < model.vocab_size:
        raise InvalidParameterError(name, token_id, f"0 to {model.vocab_size - 1}")


def _at_most(name: str, value: int, bound: int) -> None:
    if value > bound:
        raise InvalidParameterError(name, value, f"at most {bound}")
