"""Makes the status messages of a router."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from twolane.attempt_number import try_of
from twolane.router.dispatch.board import Board
from twolane.router.members.member import Member, MemberState
from twolane.router.requests.request import Request
from twolane.v1 import cluster_pb2, inference_pb2


def requests_by_state(board: Board) -> Counter[str]:
    """The number of live requests by the lower-case name of their state."""
    return Counter({state.name.lower(): n for state, n in board.states.items() if n})


def make_status(
    board: Board, *, started: float, now: float, with_requests: bool = True
) -> cluster_pb2.GetClusterStatusResponse:
    """The router's status. Making the status of each request takes a while, so it is optional."""
    requests = board.requests.values() if with_requests else ()
    health = board.store.health
    return cluster_pb2.GetClusterStatusResponse(
        router_id=board.config.router_id,
        uptime_s=now - started,
        workers=[
            cluster_pb2.WorkerStatus(
                worker=member.announce.worker,
                roles=member.announce.roles,
                state=member.state.name.lower(),
                model=member.announce.model,
                fingerprint=member.announce.fingerprint,
                load=member.load,
                last_heard_s=now - member.last_heard,
                requests=board.tally.of(member.epoch).attempts,
                pool=member.announce.pool,
                devices=member.announce.devices,
                host=member.announce.host,
                metrics_endpoint=member.announce.metrics_endpoint,
            )
            for member in board.members
        ],
        insecure_listeners=[
            f"{member.announce.worker.worker_id} ({each})"
            for member in board.members
            if member.state is not MemberState.GONE
            for each in member.announce.insecure_listeners
        ],
        requests=[_request_status(board, r, now) for r in requests],
        requests_by_state=requests_by_state(board),
        counters=board.counters,
        tenants=[
            cluster_pb2.TenantStatus(
                tenant=account.tenant,
                label=account.label,
                weight=account.limits.weight,
                live=account.n_live,
                **account.counters,
            )
            for account in board.accounts
        ],
        store=None
        if health is None
        else cluster_pb2.StoreStatus(
            address=health.address,
            up=health.is_up,
            note=health.note,
            dropped=health.dropped,
            clock_off_s=health.clock_off_s,
        ),
    )


def make_service_status(
    board: Board, found: Iterable[Request | None], *, serving: bool, now: float
) -> inference_pb2.GetStatusResponse:
    """The status for clients, without workers' names, and with only the requests in `found`. The
    caller adds the models."""
    status = inference_pb2.GetStatusResponse(serving=serving)
    here = [member for member in board.members if member.state is not MemberState.GONE]
    counts = Counter((member.state.name.lower(), _role(member)) for member in here)
    for (state, role), n in sorted(counts.items()):
        status.workers.add(state=state, role=role, workers=n)
    for request in dict.fromkeys(found):
        if request is not None:
            status.submissions.add(
                submission_id=request.job.submission_id,
                state=request.state.name.lower(),
                prompt_tokens=request.n_prompt,
                output_tokens=len(request.answer.tokens),
                age_s=now - request.job.arrived,
            )
    return status


def _role(member: Member) -> str:
    if member.prefills and member.decodes:
        return "both"
    return "prefill" if member.prefills else "decode"


def _request_status(board: Board, request: Request, now: float) -> cluster_pb2.RequestStatus:
    status = cluster_pb2.RequestStatus(
        request_id=request.job.request_id,
        submission_id=request.job.submission_id,
        state=request.state.name.lower(),
        prompt_tokens=request.n_prompt,
        output_tokens=len(request.answer.tokens),
        age_s=now - request.job.arrived,
        priority=request.job.priority,
        tenant=request.job.tenant,
    )
    attempt = request.last_attempt
    if attempt is not None:
        status.attempt = try_of(attempt.key.attempt)
        status.prefill_worker = board.members.worker_id(attempt.prefill_epoch)
        status.decode_worker = board.members.worker_id(attempt.decode_epoch)
    return status
