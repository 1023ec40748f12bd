"""Validation of an ASSIGN, as a pure function."""

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
    """The parameters of a valid ASSIGN; raises `RowRefusedError`. Does not look at load."""
    if not assign.key.submission_id or not try_of(assign.key.attempt):
        raise RowRefusedError(
            Refusal.INVALID, "key: needs a submission id and an attempt of at least 1"
        )
    if not assign.row:
        raise RowRefusedError(Refusal.INVALID, "row: the router's number of the attempt is unset")
    if not assign.roles or len(set(assign.roles)) < len(assign.roles):
        raise RowRefusedError(Refusal.INVALID, "roles: name one or both, each once")
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
        raise RowRefusedError(Refusal.INVALID, "sampling.seed: not set; the router draws one")
    if params.max_tokens is not None and n_tokens - assign.n_prompt >= params.max_tokens:
        raise RowRefusedError(Refusal.INVALID, f"already has all {params.max_tokens} tokens")
    if assign.growth_tokens < 0 or assign.sample < 0 or assign.time_left_ms < 0:
        raise RowRefusedError(Refusal.INVALID, "growth_tokens, sample or time_left_ms is below 0")
    if n_tokens >= spec.max_context_tokens:
        limit = spec.max_context_tokens - 1
        raise RowRefusedError(Refusal.TOO_LARGE, f"{n_tokens} tokens; at most {limit} leave room")
    if -(-n_tokens // spec.page_tokens) > spec.n_pages:
        raise RowRefusedError(
            Refusal.TOO_LARGE, f"{n_tokens} tokens; the pool has {spec.n_pages} pages"
        )
    return params
