"""twolane: serve large language models on two pools of workers. This package is the client.

    import twolane

    with twolane.Client() as client:
        print(client.generate("Once upon a time", max_tokens=40).text)
        for chunk in client.stream("Once upon a time"):
            print(chunk.text, end="", flush=True)

    async with twolane.AsyncClient() as client:
        completion = await client.generate(messages=[{"role": "user", "content": "Hello"}])
        async with client.stream("Once upon a time", timeout_s=30) as stream:
            async for chunk in stream:
                print(chunk.text, end="", flush=True)

Each name is imported when it is first used, so `import twolane` is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twolane.aclient import AsyncClient as AsyncClient
    from twolane.admin import AdminClient as AdminClient
    from twolane.client import Client as Client
    from twolane.client import Stream as Stream
    from twolane.errors import CancelledError as CancelledError
    from twolane.errors import DeadlineError as DeadlineError
    from twolane.errors import DuplicateRequestError as DuplicateRequestError
    from twolane.errors import InternalError as InternalError
    from twolane.errors import InvalidParameterError as InvalidParameterError
    from twolane.errors import InvalidRequestError as InvalidRequestError
    from twolane.errors import OverloadedError as OverloadedError
    from twolane.errors import PermissionDeniedError as PermissionDeniedError
    from twolane.errors import PreconditionError as PreconditionError
    from twolane.errors import QuotaError as QuotaError
    from twolane.errors import TakenOverError as TakenOverError
    from twolane.errors import TwolaneError as TwolaneError
    from twolane.errors import UnauthenticatedError as UnauthenticatedError
    from twolane.errors import UnavailableError as UnavailableError
    from twolane.errors import UnimplementedError as UnimplementedError
    from twolane.errors import UnknownModelError as UnknownModelError
    from twolane.errors import UnknownSubmissionError as UnknownSubmissionError
    from twolane.params import SamplingParams as SamplingParams
    from twolane.prompts import RequestOptions as RequestOptions
    from twolane.service_status import Caller as Caller
    from twolane.service_status import Quota as Quota
    from twolane.service_status import ServiceStatus as ServiceStatus
    from twolane.service_status import SubmissionInfo as SubmissionInfo
    from twolane.service_status import WorkerCount as WorkerCount
    from twolane.status import ClusterStatus as ClusterStatus
    from twolane.status import DrainBlocker as DrainBlocker
    from twolane.status import DrainInfo as DrainInfo
    from twolane.status import Pages as Pages
    from twolane.status import RequestInfo as RequestInfo
    from twolane.status import TenantInfo as TenantInfo
    from twolane.status import WorkerInfo as WorkerInfo
    from twolane.stream import AsyncStream as AsyncStream
    from twolane.values import Chunk as Chunk
    from twolane.values import Completion as Completion
    from twolane.values import FinishReason as FinishReason
    from twolane.values import Ledger as Ledger
    from twolane.values import Message as Message
    from twolane.values import Model as Model
    from twolane.values import Token as Token
    from twolane.values import TopLogprob as TopLogprob

__version__ = "0.1.0"

_MODULE_OF = {
    name: module
    for module, names in {
        "twolane.aclient": "AsyncClient",
        "twolane.admin": "AdminClient",
        "twolane.client": "Client Stream",
        "twolane.errors": "CancelledError DeadlineError DuplicateRequestError InternalError "
        "InvalidParameterError InvalidRequestError OverloadedError PermissionDeniedError "
        "PreconditionError QuotaError TakenOverError TwolaneError UnauthenticatedError "
        "UnavailableError UnimplementedError UnknownModelError UnknownSubmissionError",
        "twolane.params": "SamplingParams",
        "twolane.prompts": "RequestOptions",
        "twolane.service_status": "Caller Quota ServiceStatus SubmissionInfo WorkerCount",
        "twolane.status": "ClusterStatus DrainBlocker DrainInfo Pages RequestInfo TenantInfo "
        "WorkerInfo",
        "twolane.stream": "AsyncStream",
        "twolane.values": "Chunk Completion FinishReason Ledger Message Model Token TopLogprob",
    }.items()
    for name in names.split()
}

__all__ = ["__version__", *_MODULE_OF]  # names, spelt out above


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'twolane' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
