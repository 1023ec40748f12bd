"""Answers on their way to clients: what each may be given, and whether it takes it.

dispatcher ──touched──> tell ──> on_news of the request's delivery ──> take ──> one piece
                                                 │
                        block, unblock: the client's transport takes no more for a while
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType

from twolane.errors import TwolaneError
from twolane.router.config import ReadersConfig
from twolane.router.pressure import Pressure
from twolane.router.requests.piece import Piece
from twolane.router.requests.readers import Readers
from twolane.router.requests.request import Request
from twolane.v1 import inference_pb2

LATE_STEP = 1.25  # times the last step: then the next token is late


def _nothing() -> None:
    """Nobody listens yet."""


class Delivery:
    """The client's end of one admitted request. Close it: that cancels what still runs.

    `on_news` is called on the event loop whenever `take` may have something. Set it, and call
    `take` once: there may be news already.
    """

    __slots__ = ("_deliveries", "_leave", "has_begun", "is_over", "on_news", "request")

    def __init__(
        self, request: Request, deliveries: Deliveries, leave: Callable[[Request], None]
    ) -> None:
        self.request = request
        self.on_news: Callable[[], None] = _nothing
        self.has_begun = False  # a token was taken
        self.is_over = False  # nothing comes any more
        self._deliveries = deliveries
        self._leave = leave

    def first(self) -> inference_pb2.GenerateResponse:
        """What a client hears as soon as its request is admitted."""
        job = self.request.job
        return inference_pb2.GenerateResponse(
            request_id=job.request_id,
            submission_id=job.submission_id,
            resume_token=job.resume_token,
            seed=job.params.seed,
            model=job.model,
            prompt_tokens=self.request.n_prompt,
        )

    def take(self) -> Piece | None:
        """All that waits; None if nothing does."""
        if self.is_over:
            return None
        request = self.request
        piece = request.answer.take()
        self.has_begun = self.has_begun or piece is not None
        if request.is_over:
            self.is_over = True
            if request.ledger is not None:
                reason, ledger = request.finish_reason, request.ledger
                return (piece or Piece())._replace(finish_reason=reason, ledger=ledger)
        return piece

    @property
    def error(self) -> TwolaneError | None:
        """Once it is over: why the answer did not end well."""
        return self.request.error

    def block(self) -> None:
        """The client takes nothing from now on, until `unblock`: that is bounded."""
        self._deliveries.readers.begin(self.request, asyncio.get_running_loop().time())

    def unblock(self) -> None:
        """Raises `CancelledError` if it took too long."""
        self._deliveries.readers.finish(self.request)

    def close(self) -> None:
        """May be called twice."""
        self.on_news = _nothing
        self._deliveries.discard(self)
        self._leave(self.request)

    def __enter__(self) -> Delivery:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Deliveries:
    """All of one router."""

    def __init__(self, config: ReadersConfig) -> None:
        self.readers = Readers(config)
        self.pressure = Pressure()
        # by the very request: its id is free for another while its client still reads
        self._open: dict[Request, Delivery] = {}
        self._held: set[Delivery] = set()
        self._release_timer: asyncio.TimerHandle | None = None

    def add(self, request: Request, leave: Callable[[Request], None]) -> Delivery:
        """`leave` is told when it is closed."""
        delivery = self._open[request] = Delivery(request, self, leave)
        return delivery

    def discard(self, delivery: Delivery) -> None:
        """May be called for an unknown one."""
        self._open.pop(delivery.request, None)
        self._held.discard(delivery)
        self.readers.forget(delivery.request)

    def tell(self, touched: Iterable[Request]) -> None:
        """There is news of these; one may be named twice."""
        is_behind = self.pressure.is_behind
        for request in dict.fromkeys(touched):
            delivery = self._open.get(request)
            if delivery is None:
                continue
            if delivery in self._held:
                self._held.discard(delivery)
            elif is_behind and delivery.has_begun and not request.is_over:
                self._hold(delivery)
                continue
            delivery.on_news()

    def _hold(self, delivery: Delivery) -> None:
        """Until its next token: a step; if that is late, little longer than the last one took."""
        self._held.add(delivery)
        if self._release_timer is None:
            step_s = delivery.request.timeline.gap_s
            loop = asyncio.get_running_loop()
            self._release_timer = loop.call_later(LATE_STEP * step_s, self._release)

    def _release(self) -> None:
        self._release_timer = None
        held, self._held = self._held, set()
        for delivery in held:
            delivery.on_news()
