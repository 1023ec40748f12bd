"""What a router tells a client about the cluster and about the client itself, without the names of
workers and the requests of others."""

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
    """The progress of one submission that the caller asked about."""

    submission_id: str
    state: str
    prompt_tokens: int
    output_tokens: int
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """Whether the cluster serves, its models, its numbers of workers, and those of the requested
    submissions that are running."""

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
    """One quota of a tenant: requests a second, tokens a minute, or concurrent requests.
    `remaining` is negative while running requests have overdrawn it."""

    name: str  # requests, tokens, concurrent
    limit: float
    remaining: float
    reset_s: float  # until all of it is available again, if nothing is requested meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls. `name` is that of the API key or certificate; empty if the caller presented
    none."""

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
