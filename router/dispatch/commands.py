"""The router's words to a worker."""

from __future__ import annotations

from twolane.attempt_number import fence_of
from twolane.router.members.member import Member
from twolane.router.requests.attempt import Attempt
from twolane.router.requests.request import Job, Request
from twolane.v1 import worker_pb2

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
    to_decode.CopyFrom(to_prefill)  # a long prompt's ids are turned into the message's once
    to_decode.assign.roles[:] = (worker_pb2.ROLE_DECODE,)
    return [(prefill.epoch, to_prefill), (decode.epoch, to_decode)]


def assign_decode(
    request: Request, attempt: Attempt, prefill: Member, decode: Member, now: float
) -> worker_pb2.SessionRequest:
    """For the new decode worker of a retargeted transfer."""
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
    command = worker_pb2.SessionRequest(
        # of a dict: an Assign would be made and then copied, with all ids of the prompt
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
            "tenant": job.tenant,
            "request_id": job.request_id,
            "claim": job.claim,
            "fence": fence_of(attempt.key.attempt),
            "resume_hash": job.resume_hash,
        }
    )
    command.assign.token_ids.extend(request.answer.tokens[: attempt.first_index])
    return command


def time_left_ms(deadline: float | None, now: float) -> int:
    """As workers are told it: 0 for none, at least 1 and at most ten years else."""
    if deadline is None:
        return 0
    return int(min(max((deadline - now) * 1000, 1), MAX_TIME_LEFT_MS))


def cancel() -> worker_pb2.SessionRequest:
    """Of no attempt yet."""
    return worker_pb2.SessionRequest(cancel=worker_pb2.Cancel())


def attach(key: worker_pb2.AttemptKey, from_index: int, row: int) -> worker_pb2.SessionRequest:
    attach = worker_pb2.Attach(key=key, from_index=from_index, row=row)
    return worker_pb2.SessionRequest(attach=attach)


def adopt(job: Job) -> worker_pb2.SessionRequest:
    """For the fence under which its client has come here."""
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
    """What ran under `key` goes on as `moved`."""
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


def drain(wanted: worker_pb2.Drain) -> worker_pb2.SessionRequest:
    return worker_pb2.SessionRequest(drain=wanted)


def heartbeat(heard: int) -> worker_pb2.SessionRequest:
    """`heard` is the number of the last message that was processed."""
    return worker_pb2.SessionRequest(heartbeat=worker_pb2.Heartbeat(heard=heard))
