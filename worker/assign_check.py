"""Which ASSIGN a worker takes, as a pure check."""

from __future__ import annotations

from twolane.attempt_number import try_of
from twolane.engine.step import EngineSpec
from twolane.errors import InvalidParameterError
from twolane.params import SamplingParams
from twolane.refusals import Refusal
from twolane.rpc.params import params_from_proto
from twolane.v1 import worker_pb2
from twolane.worker.errors import RowRefusedError


def check_assign(assign: worker_pb2.Assign, spec: EngineSpec) -> SamplingParams:
    """The parameters of a sound ASSIGN; raises `RowRefusedError`. Knows nothing of load."""
    if not assign.key.submission_id or not try_of(assign.key.attempt):
        raise RowRefusedError(
            Refusal.INVALID, "key: a submission id and an attempt from 1 are needed"
        )
    if not assign.row:
        raise RowRefusedError(Refusal.INVALID, "row: the router's number of the attempt is unset")
    if not assign.roles or len(set(assign.roles)) < len(assign.roles):
        raise RowRefusedError(Refusal.INVALID, "roles: one or both are needed, each once")
    token_ids = assign.token_ids[:]
    n_tokens = len(token_ids)
    if not 1 <= assign.n_prompt <= n_tokens:
        raise RowRefusedError(
            Refusal.INVALID, f"n_prompt is {assign.n_prompt} of {n_tokens} token_ids"
        )
    if min(token_ids) < 0 or max(token_ids) >= spec.vocab_size:
        raise RowRefusedError(Refusal.INVALID, f"token_ids must lie in 0 to {spec.vocab_size - 1}")
    try:
        params = params_from_proto(assign.sampling)
    except InvalidParameterError as error:
        raise RowRefusedError(Refusal.INVALID, error.message) from error
    if params.seed is None:
        raise RowRefusedError(Refusal.INVALID, "sampling.seed: the router draws one, none was set")
    if params.max_tokens is not None and n_tokens - assign.n_prompt >= params.max_tokens:
        raise RowRefusedError(Refusal.INVALID, f"all {params.max_tokens} tokens are there already")
    if assign.growth_tokens < 0 or assign.sample < 0 or assign.time_left_ms < 0:
        raise RowRefusedError(Refusal.INVALID, "growth_tokens, sample, time_left_ms: below 0")
    if n_tokens >= spec.max_context_tokens:
        limit = spec.max_context_tokens - 1
        raise RowRefusedError(Refusal.TOO_LARGE, f"{n_tokens} tokens; at most {limit} leave room")
    if -(-n_tokens // spec.page_tokens) > spec.n_pages:
        raise RowRefusedError(
            Refusal.TOO_LARGE, f"{n_tokens} tokens; the pool has {spec.n_pages} pages"
        )
    return params
