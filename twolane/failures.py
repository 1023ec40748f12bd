"""A failed call, as the caller should hear of it."""

from __future__ import annotations

import grpc

from twolane.config import ENDPOINT_VARIABLE
from twolane.errors import DeadlineError, TwolaneError, UnavailableError
from twolane.rpc.errors import from_rpc_error


def explain(error: grpc.RpcError, *, endpoint: str, timeout_s: float | None) -> TwolaneError:
    """The error of our tree; what gRPC itself says in a few words is said in full here."""
    ours = from_rpc_error(error)
    said_by_server = bool(ours.metadata) or "grpc-status-details-bin" in _trailers(error)
    if said_by_server:
        return ours
    if isinstance(ours, UnavailableError):
        # "failed to connect to all addresses; last error: …: Connection refused"
        return unreachable(endpoint, ours.message.rpartition(": ")[2])
    if isinstance(ours, DeadlineError) and timeout_s is not None:
        return DeadlineError(
            f"no complete answer from {endpoint} within {timeout_s:g} s",
            metadata={"timeout_s": f"{timeout_s:g}"},
        )
    return ours


def unreachable(endpoint: str, why: str) -> UnavailableError:
    """Nobody answers there, and what to do about it."""
    return UnavailableError(
        f"no cluster answers at {endpoint} ({why}). Start one with `twolane up`, or name another "
        f"with endpoint=… or {ENDPOINT_VARIABLE}",
        metadata={"endpoint": endpoint},
    )


def _trailers(error: grpc.RpcError) -> set[str]:
    if not isinstance(error, grpc.aio.AioRpcError):
        return set()
    return {key for key, _ in error.trailing_metadata() or ()}
