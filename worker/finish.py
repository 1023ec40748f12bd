"""When an answer ends, judged by its tokens. Stop strings are text: the router checks them.

    index of the newest token      0 ........ min_tokens ........ max_tokens - 1
    an end token                   ignored -->| ends: STOP
    any token                                                    | ends: LENGTH

Both roles and every attempt use this rule, so a row that is resumed elsewhere ends at the same
token.
"""

from __future__ import annotations

from twolane.engine.step import EngineSpec
from twolane.params import SamplingParams
from twolane.v1 import sampling_pb2

GOES_ON = sampling_pb2.FINISH_REASON_UNSPECIFIED


def end_ids(params: SamplingParams, spec: EngineSpec) -> frozenset[int]:
    """The tokens that end an answer. Otherwise it ends only by its length."""
    eos = () if params.ignore_eos else spec.eos_token_ids
    return frozenset(params.stop_token_ids).union(eos)


def most_tokens(n_prompt: int, params: SamplingParams, spec: EngineSpec) -> int:
    """The number of tokens, prompt included, at which an answer ends at the latest."""
    if params.max_tokens is None:
        return spec.max_context_tokens
    return min(n_prompt + params.max_tokens, spec.max_context_tokens)


def finish_reason(
    *, last_token: int, n_answer: int, n_tokens: int, params: SamplingParams, spec: EngineSpec
) -> sampling_pb2.FinishReason:
    """Why the answer ends with `last_token`, its n_answer-th token, the n_tokens-th with the
    prompt.

    FINISH_REASON_UNSPECIFIED when it goes on. `stop_token_ids` count even under `ignore_eos`. An
    end token takes precedence over a length limit that is reached at the same token.
    """
    assert 1 <= n_answer < n_tokens
    may_end = n_answer > params.min_tokens
    is_eos = last_token in spec.eos_token_ids and not params.ignore_eos
    if may_end and (is_eos or last_token in params.stop_token_ids):
        return sampling_pb2.FINISH_REASON_STOP
    if n_tokens >= most_tokens(n_tokens - n_answer, params, spec):
        return sampling_pb2.FINISH_REASON_LENGTH
    return GOES_ON
