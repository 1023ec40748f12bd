"""Checks the answers of the live cluster for an operator: each worker alone, and each pair."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial

from twolane.errors import (
    InvalidParameterError,
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
)
from twolane.router.doors.admin.audited_acts import AuditedActs
from twolane.router.doors.admin.worker_calls import WorkerCalls
from twolane.router.members.member import Member, MemberState
from twolane.router.operators.cluster_check import ClusterCheck
from twolane.router.operators.comparison import (
    LONGEST_PROMPT,
    MAX_TOKENS,
    MOST_MAX_TOKENS,
    MOST_PROMPTS,
    PROMPTS,
    Answer,
    answer_of,
    make_prompts,
    pairs,
    prompt_lengths,
    sampling,
)
from twolane.router.router import Router
from twolane.rpc.call_gate import Context
from twolane.rpc.handlers import Handler, unary_stream
from twolane.v1 import admin_pb2, facts_pb2, inference_pb2

ANSWER_S = 60.0  # for one answer


class Checks:
    """Of one router. One check at a time."""

    def __init__(self, router: Router, workers: WorkerCalls, audited: AuditedActs) -> None:
        self._router = router
        self._workers = workers
        self._audited = audited
        self._is_busy = False

    def methods(self) -> Mapping[str, Handler]:
        return {"CheckCluster": unary_stream(admin_pb2.CheckClusterRequest, self._check)}

    async def _check(self, request: admin_pb2.CheckClusterRequest, context: Context) -> None:
        async def work() -> str:
            if self._is_busy:
                raise OverloadedError("another check runs at this router", retry_after_s=5.0)
            self._is_busy = True
            try:
                return await self._run(request, context)
            finally:
                self._is_busy = False

        await self._audited.watch(context, "check", request.model or "cluster", request.act, work)

    async def _run(self, request: admin_pb2.CheckClusterRequest, context: Context) -> str:
        _in_range("prompts", request.prompts, MOST_PROMPTS)
        _in_range("max_tokens", request.max_tokens, MOST_MAX_TOKENS)
        max_tokens = request.max_tokens or MAX_TOKENS
        members = self._members(request)
        left_out = self._left_out(request, members)
        prefills = {its.worker_id: its for its in members if its.prefills}
        decodes = {its.worker_id: its for its in members if its.decodes}
        chosen = [
            (prefills[one], decodes[other])
            for one, other in pairs([*prefills], [*decodes], request.worker_ids)
            if prefills[one].announce.fingerprint == decodes[other].announce.fingerprint
        ]
        if request.act.dry_run:
            for its in left_out:
                await context.write(its)
            for one, other in [*((its, its) for its in members), *chosen]:
                await context.write(
                    admin_pb2.CheckClusterResponse(
                        prefill_worker=one.worker_id, decode_worker=other.worker_id
                    )
                )
            return ""
        told = [member.announce for member in members]
        most = min(
            LONGEST_PROMPT,
            *(its.max_context_tokens - max_tokens for its in told),
            *(its.n_pages * its.page_tokens - max_tokens for its in told),
        )
        if most < 1:
            raise InvalidParameterError(
                "max_tokens", max_tokens, f"at most {max_tokens + most - 1}"
            )
        sizes = [its.page_tokens for its in told]
        lengths = prompt_lengths(request.prompts or PROMPTS, sizes, most)
        outcomes = []
        for its in left_out:
            its.left = len(members) + len(chosen)
            await context.write(its)
        for group in _by_fingerprint(members):
            prompts = make_prompts(lengths, group[0].announce.vocab_size, seed=secrets.randbits(32))
            check = ClusterCheck(
                group,
                [pair for pair in chosen if pair[0] in group],
                prompts,
                max_tokens,
                ask_alone=self._ask_alone,
                ask_pair=partial(ask_pair, self._router, max_tokens=max_tokens),
                tell=context.write,
            )
            outcomes.append(str(await check.run()))
        if left_out:
            outcomes.append(f"left out: {', '.join(its.prefill_worker for its in left_out)}")
        return "; ".join(outcomes)

    def _members(self, request: admin_pb2.CheckClusterRequest) -> list[Member]:
        """Those that take new work, prefill workers first. Raises `InvalidRequestError`."""
        known = [its for its in self._here(request) if its.state is MemberState.ALIVE]
        for name in request.worker_ids:
            if name not in {its.worker_id for its in known}:
                raise InvalidRequestError(
                    f"{name!r} is no worker that is alive and serves this", field="worker_ids"
                )
        models = sorted({its.announce.model for its in known})
        if len(models) > 1:
            raise InvalidRequestError(
                f"the cluster serves {', '.join(models)}; name one", field="model"
            )
        if not known:
            raise UnavailableError("no worker is alive that serves this")
        return sorted(known, key=lambda its: (not its.prefills, its.worker_id))

    def _left_out(
        self, request: admin_pb2.CheckClusterRequest, members: Sequence[Member]
    ) -> list[admin_pb2.CheckClusterResponse]:
        """A row for each worker that should be compared with those, and takes no new work."""
        chosen = [its for its in members if its.worker_id in request.worker_ids] or members
        prints = {its.announce.fingerprint for its in chosen}
        here = [its for its in self._here(request) if its.announce.fingerprint in prints]
        paired = pairs(
            [its.worker_id for its in here if its.prefills],
            [its.worker_id for its in here if its.decodes],
            request.worker_ids,
        )
        asked = {name for pair in paired for name in pair}
        return [
            admin_pb2.CheckClusterResponse(
                prefill_worker=its.worker_id,
                decode_worker=its.worker_id,
                error=f"it is {its.state.name.lower()}",
            )
            for its in sorted(here, key=lambda its: (not its.prefills, its.worker_id))
            if its.state is not MemberState.ALIVE
            and (its.worker_id in asked or not request.worker_ids)
        ]

    def _here(self, request: admin_pb2.CheckClusterRequest) -> list[Member]:
        return [
            its
            for its in self._router.operations.members()
            if its.state is not MemberState.GONE
            and its.announce.model == (request.model or its.announce.model)
        ]

    async def _ask_alone(
        self, member: Member, request: facts_pb2.AnswerAloneRequest
    ) -> facts_pb2.AnswerAloneResponse:
        return await self._workers.answer_alone(member, request, ANSWER_S)


async def ask_pair(
    router: Router, prefill: Member, decode: Member, prompt: Sequence[int], max_tokens: int
) -> Answer:
    """That pair's answer. Raises `TwolaneError`: `OverloadedError` if it has no room now, and
    `UnavailableError` if other workers have answered."""
    message = inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=prompt),
        sampling=sampling(max_tokens),
        model=prefill.announce.model,
        priority=-router.config.limits.priority,
    )
    pair = prefill.epoch, decode.epoch
    delivery = await router.open(message, time_left_s=ANSWER_S, pair=pair)
    tokens: list[inference_pb2.Token] = []
    async for response in delivery.responses():
        tokens.extend(response.tokens)
        if response.HasField("ledger"):
            its = response.ledger
    if (its.prefill_worker, its.decode_worker) != (prefill.worker_id, decode.worker_id):
        raise UnavailableError(f"{its.prefill_worker} and {its.decode_worker} have answered")
    return answer_of(tokens)


def _by_fingerprint(members: Sequence[Member]) -> list[list[Member]]:
    groups: dict[str, list[Member]] = {}
    for member in members:
        groups.setdefault(member.announce.fingerprint, []).append(member)
    return list(groups.values())


def _in_range(name: str, value: int, most: int) -> None:
    if not 0 <= value <= most:
        raise InvalidParameterError(name, value, f"0 to {most}")
