"""The names that other people's code may use. Changing this list is changing the API."""

from __future__ import annotations

import inspect

import twolane
import twolane.testing
from twolane import AsyncClient, Client

PUBLIC = [
    "AdminClient",
    "AsyncClient",
    "AsyncStream",
    "Caller",
    "CancelledError",
    "Chunk",
    "Client",
    "ClusterStatus",
    "Completion",
    "DeadlineError",
    "DrainBlocker",
    "DrainInfo",
    "DuplicateRequestError",
    "FinishReason",
    "InternalError",
    "InvalidParameterError",
    "InvalidRequestError",
    "Ledger",
    "Message",
    "Model",
    "OverloadedError",
    "Pages",
    "PermissionDeniedError",
    "PreconditionError",
    "Quota",
    "QuotaError",
    "RequestInfo",
    "RequestOptions",
    "SamplingParams",
    "ServiceStatus",
    "Stream",
    "SubmissionInfo",
    "TakenOverError",
    "TenantInfo",
    "Token",
    "TopLogprob",
    "TwolaneError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownModelError",
    "UnknownSubmissionError",
    "WorkerCount",
    "WorkerInfo",
    "__version__",
]


def test_the_public_names_are_these() -> None:
    assert sorted(twolane.__all__) == PUBLIC
    assert sorted(twolane.testing.__all__) == ["LocalCluster", "start_local"]


def test_every_public_name_resolves() -> None:
    for name in twolane.__all__:
        assert getattr(twolane, name) is not None


def test_dir_lists_the_public_names() -> None:
    assert set(PUBLIC) <= set(dir(twolane))


def public_methods(cls: type) -> dict[str, list[str]]:
    return {
        name: [p for p in inspect.signature(method).parameters if p != "self"]
        for name, method in inspect.getmembers(cls, callable)
        if not name.startswith("_")
    }


def test_the_sync_client_is_the_async_one_method_by_method() -> None:
    assert public_methods(Client) == public_methods(AsyncClient)
