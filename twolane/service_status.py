"""What the clients' door tells of itself and of the caller: no worker's name, and nobody else's
requests."""

from __future__ import annotations

from dataclasses import dataclass, fields

from twolane.v1 import inference_pb2
from twolane.values import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCount:
    """How many workers of one role are in one state."""

    state: str  # joining, alive, suspect, draining
    role: str  # prefill, decode, both
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionInfo:
    """How far one submission is, which the caller has named."""

    submission_id: str
    state: str
    prompt_tokens: int
    output_tokens: int
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """Whether the cluster serves, what, with how many workers; and the submissions that were named
    and run."""

    serving: bool
    models: tuple[Model, ...]
    workers: tuple[WorkerCount, ...]
    submissions: tuple[SubmissionInfo, ...] = ()

    @classmethod
    def from_proto(cls, message: inference_pb2.GetStatusResponse) -> ServiceStatus:
        return cls(
            serving=message.serving,
            models=tuple(Model.from_proto(model) for model in message.models),
            workers=tuple(
                WorkerCount(state=count.state, role=count.role, workers=count.workers)
                for count in message.workers
            ),
            submissions=tuple(
                SubmissionInfo(**{f.name: getattr(one, f.name) for f in fields(SubmissionInfo)})
                for one in message.submissions
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """One quota of a tenant: requests a second, tokens a minute, or concurrent requests. Below 0
    remains what running requests may still take beyond it."""

    name: str  # requests, tokens, concurrent
    limit: float
    remaining: float
    reset_s: float  # until all of it is there again, if nothing is asked meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """`name` is that of an API key or certificate, and empty where neither was shown."""

    role: str
    name: str
    tenant: str
    quotas: tuple[Quota, ...] = ()

    @classmethod
    def from_proto(cls, message: inference_pb2.WhoAmIResponse) -> Caller:
        return cls(
            role=message.role,
            name=message.name,
            tenant=message.tenant,
            quotas=tuple(
                Quota(**{f.name: getattr(quota, f.name) for f in fields(Quota)})
                for quota in message.quotas
            ),
        )
