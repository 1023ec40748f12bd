"""How a submission passes from one router to another: FIND, ADOPT, and the fence.

    router A, fence 0 ──ASSIGN──> attempt 1 ──┐                 ┌── A: TAKEN, and nothing it says of
    router B, fence 1 ──ADOPT───> attempt 1 ──┴── B owns it ────┤      the submission counts here
                      ──ATTACH──> B listens                     └── B: attempts 65537, 65538, …

The client draws the fence: the number of its takeover. So of two routers that adopt at different
workers at once, one wins at both. The fence is remembered for longer than the logs: a router that
was paused begins nothing again that another one has had.
"""

from __future__ import annotations

import hmac
from collections import Counter

from twolane.v1 import worker_pb2
from twolane.worker.attempts.attempt_log import AttemptLog, Listener
from twolane.worker.attempts.owner import Owner
from twolane.worker.attempts.registry import Registry

_ADOPTED = worker_pb2.Adopted


def find(registry: Registry, wanted: worker_pb2.Find) -> worker_pb2.Found:
    """Names only: who wants more must show the resume hash."""
    found = worker_pb2.Found(find=wanted)
    if wanted.submission_id:
        logs = registry.of_submission(wanted.submission_id)
    else:
        logs = registry.of_label(wanted.tenant, wanted.request_id)
    if logs:
        found.submission_id = logs[0].attempt.submission_id
        found.fence = max(log.fence for log in logs)
    for log in logs:
        found.attempts.add(
            key=log.attempt.key,
            has_ended=log.ended_s is not None,
            prefill_epoch=log.assign.prefill.epoch,
            decode_epoch=log.decode.epoch,
        )
    return found


def adopt(
    registry: Registry, wanted: worker_pb2.Adopt, owner: Owner, dropped: Counter[str], now: float
) -> tuple[worker_pb2.Adopted, list[tuple[Listener, AttemptLog]]]:
    """The answer, and who listened to which attempt until now, for whom it is taken."""
    answer = worker_pb2.Adopted(submission_id=wanted.submission_id, fence=wanted.fence)
    logs = registry.of_submission(wanted.submission_id)
    if not wanted.fence or not logs or not all(_is_of(log, wanted) for log in logs):
        answer.result = _ADOPTED.RESULT_GONE
        return answer, []
    highest = max(logs, key=lambda log: log.fence)
    if _is_above(highest, owner, wanted.fence):
        dropped["not_owner"] += 1
        answer.result, answer.held_fence = _ADOPTED.RESULT_TAKEN, highest.fence
        return answer, []
    answer.result = _ADOPTED.RESULT_ADOPTED
    losers = []
    for log in logs:
        if log.session is not None and log.owner != owner:
            losers.append((log.session, log))
        log.hand_to(owner, wanted.fence, now)  # guard: adopted owner
        answer.attempts.append(log.describe())
    return answer, losers


def is_barred(registry: Registry, log: AttemptLog) -> bool:
    """Whether a new attempt must not begin: its submission is another router's here, under a fence
    that is not lower, or it is not the same submission, whatever its name."""
    submission_id = log.attempt.submission_id
    if registry.past_fence(submission_id) > log.fence:  # guard: past fence
        return True
    return any(
        _is_above(other, log.owner, log.fence) or not _is_same(other, log)
        for other in registry.of_submission(submission_id)
    )


def outranked(registry: Registry, log: AttemptLog) -> list[AttemptLog]:
    """Attempts under lower fences, that are here when another router begins this one."""
    return [
        other
        for other in registry.of_submission(log.attempt.submission_id)
        if other.fence < log.fence
    ]


def _is_above(log: AttemptLog, owner: Owner, fence: int) -> bool:
    """Whether `log` is held under a fence that this router's does not reach."""
    return log.fence > fence or (log.fence == fence and log.owner != owner)  # guard: fence


def _is_of(log: AttemptLog, wanted: worker_pb2.Adopt) -> bool:
    hash_, tenant = log.assign.resume_hash, log.assign.tenant
    is_shown = hmac.compare_digest(hash_, wanted.resume_hash)  # in constant time
    return bool(hash_) and is_shown and tenant == wanted.tenant  # guard: resume hash


def _is_same(log: AttemptLog, other: AttemptLog) -> bool:
    ours, theirs = log.assign, other.assign
    is_shown = hmac.compare_digest(ours.resume_hash, theirs.resume_hash)
    return is_shown and ours.tenant == theirs.tenant  # guard: same submission
