"""Makes the router's commands to workers."""

from __future__ import annotations

from collections.abc import Iterable

from twolane.attempt_number import fence_of
from twolane.router.members.member import Member
from twolane.router.requests.attempt import Attempt
from twolane.router.requests.request import Job, Request
from twolane.v1 import drain_pb2, worker_pb2

MAX_TIME_LEFT_MS = 10 * 365 * 86_400 * 1000


def assigns(
    request: Request, attempt: Attempt, prefill: Member, decode: Member, now: float
) -> list[tuple[int, worker_pb2.SessionRequest]]:
    """One Assign to each worker of the attempt: two, or one with both roles."""
    if attempt.is_colocated:
        roles = (worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE)
        return [(prefill.epoch, _assign(request, attempt, prefill, decode, roles, now))]
    to_prefill = _assign(request, attempt, prefill, decode, (worker_pb2.ROLE_PREFILL,), now)
    to_decode = worker_pb2.SessionRequest()
    to_decode.CopyFrom(to_prefill)  # so that a long prompt's ids are converted only once
    to_decode.assign.roles[:] = (worker_pb2.ROLE_DECODE,)
    return [(prefill.epoch, to_prefill), (decode.epoch, to_decode)]


def assign_decode(
    request: Request, attempt: Attempt, prefill: Member, decode: Member, now: float
) -> worker_pb2.SessionRequest:
    """The Assign for the new decode worker of a retargeted transfer."""
    return _assign(request, attempt, prefill, decode, (worker_pb2.ROLE_DECODE,), now)


def _assign(
    request: Request,
    attempt: Attempt,
    prefill: Member,
    decode: Member,
    roles: tuple[worker_pb2.Role, ...],
    now: float,
) -> worker_pb2.SessionRequest:
    job = request.job
    resume_hash = job.resume_hash
    command = worker_pb2.SessionRequest(
        # from a dict: an Assign would be copied, with all ids of the prompt
        assign={
            "key": attempt.key,
            "row": attempt.row,
            "roles": roles,
            "token_ids": job.token_ids,
            "n_prompt": job.n_prompt,
            "sampling": request.sampling,
            "priority": job.priority,
            "time_left_ms": time_left_ms(job.deadline, now),
            "prefill": prefill.announce.worker,
            "decode": decode.announce.worker,
            "growth_tokens": attempt.growth_tokens,
            "tenant": job.cache_owner,
            "request_id": job.request_id,
            "claim": int.from_bytes(resume_hash[:8]),  # the same at all routers
            "fence": fence_of(attempt.key.attempt),
            "resume_hash": resume_hash,
        }
    )
    command.assign.token_ids.extend(request.answer.tokens[: attempt.first_index])
    return command


def time_left_ms(deadline: float | None, now: float) -> int:
    """The time until the deadline, as sent to workers: 0 for no deadline, otherwise at least 1 ms
    and at most ten years."""
    if deadline is None:
        return 0
    return int(min(max((deadline - now) * 1000, 1), MAX_TIME_LEFT_MS))


def cancel() -> worker_pb2.SessionRequest:
    """A cancel command, still without attempts."""
    return worker_pb2.SessionRequest(cancel=worker_pb2.Cancel())


def attach(key: worker_pb2.AttemptKey, from_index: int, row: int) -> worker_pb2.SessionRequest:
    attach = worker_pb2.Attach(key=key, from_index=from_index, row=row)
    return worker_pb2.SessionRequest(attach=attach)


def adopt(job: Job) -> worker_pb2.SessionRequest:
    """The Adopt command, with the fence of the client's latest takeover."""
    return worker_pb2.SessionRequest(
        adopt=worker_pb2.Adopt(
            submission_id=job.submission_id,
            fence=job.fence,
            resume_hash=job.resume_hash,
            tenant=job.tenant,
        )
    )


def retarget(
    key: worker_pb2.AttemptKey, moved: Attempt, decode: Member
) -> worker_pb2.SessionRequest:
    """The command to continue the attempt `key` as the attempt `moved`."""
    command = worker_pb2.Retarget(
        key=key,
        next_attempt=moved.key.attempt,
        next_row=moved.row,
        decode=decode.announce.worker,
    )
    return worker_pb2.SessionRequest(retarget=command)


def judge_peer(epoch: int) -> worker_pb2.SessionRequest:
    return worker_pb2.SessionRequest(judge_peer=worker_pb2.JudgePeer(epoch=epoch))


def peer_gone(epoch: int) -> worker_pb2.SessionRequest:
    return worker_pb2.SessionRequest(peer_gone=worker_pb2.PeerGone(epoch=epoch))


def drain(wanted: drain_pb2.Drain) -> worker_pb2.SessionRequest:
    return worker_pb2.SessionRequest(drain=wanted)


def set_roles(roles: Iterable[worker_pb2.Role]) -> worker_pb2.SessionRequest:
    return worker_pb2.SessionRequest(set_roles=worker_pb2.SetRoles(roles=roles))


def heartbeat(heard: int) -> worker_pb2.SessionRequest:
    """`heard` is the number of the last message that was processed."""
    return worker_pb2.SessionRequest(heartbeat=worker_pb2.Heartbeat(heard=heard))
