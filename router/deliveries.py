"""Answers on their way to clients: what each may be given, and whether it takes it.

dispatcher ──touched──> tell ──> on_news of the request's delivery ──> take ──> one piece
                                                 │
                        block, unblock: the client's transport takes no more for a while
                        hand_over: it goes on at another router
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from types import TracebackType

from twolane.errors import CancelledError, TwolaneError
from twolane.router.config import ReadersConfig
from twolane.router.pressure import Pressure
from twolane.router.requests.piece import Piece
from twolane.router.requests.readers import Readers
from twolane.router.requests.request import Request
from twolane.v1 import inference_pb2

LATE_STEP = 1.25  # times the last step: then the next token is late
log = logging.getLogger(__name__)

_POLL_S = 0.02


def _nothing() -> None:
    """Nobody listens yet."""


class Delivery:
    """The client's end of one admitted request. Close it: that cancels what still runs.

    A client that `resumes` may be told that its answer moves: then the request stays.

    `on_news` is called on the event loop whenever `take` may have something. Set it, and call
    `take` once: there may be news already.
    """

    __slots__ = ("_deliveries", "has_begun", "is_over", "on_news", "request", "resumes")

    def __init__(
        self,
        request: Request,
        deliveries: Deliveries,
        *,
        resumes: bool = False,
    ) -> None:
        self.request = request
        self.resumes = resumes
        self.on_news: Callable[[], None] = _nothing
        self.has_begun = False  # a token was taken
        self.is_over = False  # nothing comes any more
        self._deliveries = deliveries

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
            routers=self._deliveries.routers(),
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
        elif self.resumes and (moved_to := self._deliveries.moved_to):
            self.is_over = True
            self._deliveries.note_moved(request)
            return (piece or Piece())._replace(moved_to=moved_to)
        return piece

    @property
    def error(self) -> TwolaneError | None:
        """Once it is over: why the answer did not end well."""
        return None if self._deliveries.has_moved(self.request) else self.request.error

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
        self._deliveries.leave(self.request)

    async def responses(self) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        """All of the answer, as it comes; then this is closed. Raises what ended it."""
        with self:
            wake = asyncio.Event()
            self.on_news = wake.set
            wake.set()  # there may be news since it was submitted
            self.block()
            yield self.first()
            self.unblock()
            while not self.is_over:
                await wake.wait()
                wake.clear()
                piece = self.take()
                if piece is not None:
                    self.block()
                    yield piece.to_response()
                    self.unblock()
            if self.error is not None:
                raise self.error

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

    def __init__(
        self,
        config: ReadersConfig,
        end: Callable[[str, TwolaneError], object],
        routers: Callable[[], Sequence[str]],
    ) -> None:
        """`end` ends a running request by its submission id; `routers` are the gRPC doors of all
        routers, our own last."""
        self.readers = Readers(config)
        self._end = end
        self.routers = routers
        self.moved_to: Sequence[str] = ()  # once this router hands over: the others' doors
        self.pressure = Pressure()
        # by the very request: its id is free for another while its client still reads
        self._open: dict[Request, Delivery] = {}
        self._held: set[Delivery] = set()
        self._release_timer: asyncio.TimerHandle | None = None
        self._moved: set[Request] = set()  # whose clients have been told so

    def add(self, request: Request, *, resumes: bool = False) -> Delivery:
        delivery = self._open[request] = Delivery(request, self, resumes=resumes)
        return delivery

    def leave(self, request: Request) -> None:
        """Its client has left: for good, unless it was told to go on elsewhere."""
        if not request.is_over and not self.has_moved(request):
            self._end(request.job.submission_id, CancelledError("the client left"))

    def end_unread(self, now: float) -> None:
        """End what its client does not read; it hears why when it reads on."""
        for request, reason in self.readers.cut(now):
            log.info("request %s ends: %s", request.job.request_id, reason.message)
            if not request.is_over:
                self._end(request.job.submission_id, reason)
            request.answer.take()  # and nobody gets it

    async def hand_over(self, within_s: float) -> None:
        """If there is another router, tell clients that can that their answers go on there, now and
        from now on. The requests stay, so that their rows are kept until another router has them;
        waits for that."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        self.moved_to = tuple(self.routers()[:-1])
        if not self.moved_to:
            return
        self.tell(list(self._open))
        while loop.time() < until and self._is_moving():  # noqa: ASYNC110 - many end, many ways
            await asyncio.sleep(_POLL_S)

    def note_moved(self, request: Request) -> None:
        self._moved.add(request)

    def has_moved(self, request: Request) -> bool:
        """Whether its client has been told."""
        return request in self._moved

    def moved(self) -> list[Request]:
        """Those that no other router has yet."""
        return [request for request in self._moved if not request.is_over]

    def _is_moving(self) -> bool:
        is_told = any(delivery.resumes for delivery in self._open.values())
        return is_told or bool(self.moved())

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


async def responses(
    delivery: Delivery,
) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
    """For a client on a stream of its own: each once it has taken the one before. Raises what ended
    the answer, or `CancelledError` where it takes none for too long."""
    wake = asyncio.Event()
    delivery.on_news = wake.set
    wake.set()  # there may be news since it was submitted
    delivery.block()
    yield delivery.first()
    delivery.unblock()
    while not delivery.is_over:
        await wake.wait()
        wake.clear()
        piece = delivery.take()
        if piece is not None:
            delivery.block()
            yield piece.to_response()
            delivery.unblock()
    if delivery.error is not None:
        raise delivery.error
