"""Bounds, in bytes and in time, the unsent data of clients that do not read their answers.

    write begins ──> done                                the client reads
          └──> pause_s, and too many bytes wait ──┐
          └──> unread_s ──────────────────────────┴──> its request ends, unsent data is dropped

All tokens that arrive during one write go out with the next, so data piles up only during a
slow write.
"""

from __future__ import annotations

from dataclasses import dataclass

from twolane.errors import CancelledError
from twolane.router.config import ReadersConfig
from twolane.router.requests.request import Request

# Memory that the router needs for an unsent token, measured.
_TOKEN_BYTES = 100
_LOGPROB_BYTES = 150


@dataclass(slots=True)
class _Write:
    began: float
    n_tokens: int  # tokens of the answer in this write and all earlier ones


class Readers:
    """The pending writes of one router. Clients that read add no cost."""

    def __init__(self, config: ReadersConfig) -> None:
        self._config = config
        self._writes: dict[Request, _Write] = {}  # oldest first
        self._cut: dict[Request, CancelledError] = {}

    def begin(self, request: Request, now: float) -> None:
        """All unsent tokens are now being written to the client."""
        self._writes[request] = _Write(now, len(request.answer.tokens))

    def finish(self, request: Request) -> None:
        """The write is done. Raises `CancelledError`, only once, if it took too long."""
        if self._writes.pop(request, None) is None:
            raise self._cut.pop(request)

    def forget(self, request: Request) -> None:
        """The client has disconnected. Does nothing for an unknown request."""
        self._writes.pop(request, None)
        self._cut.pop(request, None)

    def excuse(self, late_s: float, now: float) -> None:
        """Take those seconds off the pending writes, if this router comes back after so many that
        it may take its own pause for its clients': what they have read is still to be noticed."""
        if late_s <= self._config.pause_s / 2:
            return
        for write in self._writes.values():
            write.began = min(now, write.began + late_s)

    def cut(self, now: float) -> list[tuple[Request, CancelledError]]:
        """The requests that must end now because their clients do not read, each with its error."""
        cut = []
        for request, write in self._writes.items():
            waited_s = now - write.began
            if waited_s < self._config.pause_s:
                break
            n_bytes = _unread_bytes(request, write)
            if waited_s >= self._config.unread_s or n_bytes > self._config.unread_bytes:
                cut.append((request, _reason(waited_s, n_bytes)))
        for request, reason in cut:
            del self._writes[request]
            self._cut[request] = reason
        return cut


def _unread_bytes(request: Request, write: _Write) -> int:
    top = request.job.params.top_logprobs
    n_bytes = _TOKEN_BYTES + (0 if top is None else _LOGPROB_BYTES * (top + 1))
    return n_bytes * (len(request.answer.tokens) - write.n_tokens)


def _reason(waited_s: float, n_bytes: int) -> CancelledError:
    return CancelledError(
        f"the client has read nothing for {waited_s:.1f} s, and about {n_bytes} bytes of its "
        "answer wait; read faster, or ask for less",
        metadata={
            "reason": "unread",
            "waited_s": f"{waited_s:.1f}",
            "unread_bytes": str(n_bytes),
        },
    )
