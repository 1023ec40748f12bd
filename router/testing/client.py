"""A client for tests: sends a request to a router and records every response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from twolane.errors import TwolaneError
from twolane.router.config import RouterConfig
from twolane.router.requests.traces import NO_TRACES, Traces
from twolane.router.router import Router
from twolane.router.tenants.accounts import no_limits
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.text.codec import TextCodec
from twolane.security.identity import ANONYMOUS, Identity, Role
from twolane.security.keys import TenantLimits
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1 import inference_pb2, sampling_pb2


@dataclass
class Outcome:
    """One answer, or the part of it that arrived before the error."""

    tokens: list[int] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: int = 0
    ledger: sampling_pb2.Ledger = field(default_factory=sampling_pb2.Ledger)
    error: TwolaneError | None = None
    first: inference_pb2.GenerateResponse = field(default_factory=inference_pb2.GenerateResponse)
    responses: int = 0
    ended_at: float = 0.0


def message(
    prompt: Sequence[int] | str, *, request_id: str = "", priority: int = 0, **sampling: Any
) -> inference_pb2.GenerateRequest:
    """A request whose prompt is token ids or text."""
    request = inference_pb2.GenerateRequest(
        request_id=request_id,
        priority=priority,
        sampling=sampling_pb2.SamplingParams(**{"temperature": 0.0, **sampling}),
    )
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
    return request


def client_of(tenant: str, name: str = "key") -> Identity:
    """A client of that tenant."""
    return Identity(Role.CLIENT, name, tenant)


async def ask(
    router: Router,
    request: inference_pb2.GenerateRequest,
    *,
    caller: Identity = ANONYMOUS,
    time_left_s: float | None = None,
    leave_after: int | None = None,
) -> Outcome:
    """Read the whole answer, or cancel after its first `leave_after` tokens."""
    outcome = Outcome()
    try:
        generating = router.generate(request, caller, time_left_s=time_left_s)
        async with aclosing(generating) as answer:
            async for response in answer:
                if not outcome.responses:
                    outcome.first = response
                outcome.responses += 1
                outcome.tokens += [token.token_id for token in response.tokens]
                outcome.indexes += [token.index for token in response.tokens]
                outcome.text += response.text
                if response.finish_reason:
                    assert not outcome.finish_reason, "two last messages"
                    outcome.finish_reason = response.finish_reason
                    outcome.ledger = response.ledger
                if leave_after is not None and len(outcome.tokens) >= leave_after:
                    break
    except TwolaneError as error:
        outcome.error = error
    outcome.ended_at = asyncio.get_running_loop().time()
    assert outcome.indexes == list(range(len(outcome.tokens))), "lost, repeated or out of order"
    return outcome


async def resume(
    router: Router, wanted: inference_pb2.ResumeRequest, caller: Identity = ANONYMOUS
) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
    """Resume an answer and yield the rest of it."""
    delivery = await router.open_resumed(wanted, caller, resumes=True)
    async with aclosing(delivery.responses()) as responses:
        async for response in responses:
            yield response


def play(
    script: Callable[[Router, ScriptedCluster], Awaitable[None]],
    workers: Sequence[str] = ("p0", "d0"),
    *,
    config: RouterConfig | None = None,
    text: TextCodec | None = None,
    clean_after_s: float = 1.0,
    limits_of: Callable[[str], TenantLimits] = no_limits,
    traces: Traces = NO_TRACES,
) -> None:
    """Run a script under virtual time, with a router and these workers. Then assert that no request
    is left in the router's tables and, `clean_after_s` later, on the workers."""

    async def main() -> None:
        cluster = ScriptedCluster()
        whole = config or RouterConfig()
        async with Router(whole, cluster, text, limits_of=limits_of, traces=traces) as router:
            cluster.router_announce = router.announce
            for worker_id in workers:
                cluster.start_worker(worker_id)
            await asyncio.sleep(0.1)
            await script(router, cluster)
            router.check_integrity()
            status = router.status()
            assert not status.requests
            assert not status.requests_by_state
            await asyncio.sleep(clean_after_s)
            cluster.assert_clean()

    with virtual_time_runner() as runner:
        runner.run(main())
