"""Delivers answers to clients, as fast as each client reads.

dispatcher ──touched──> tell ──> on_news of the request's delivery ──> take ──> one piece
                                                 │
                        block, unblock: the client's transport is full for a while
                        hand_over: the answer continues at another router
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from types import TracebackType

from twolane.errors import CancelledError, TwolaneError
from twolane.router.config import ReadersConfig
from twolane.router.known_routers import KnownRouters
from twolane.router.pressure import Pressure
from twolane.router.requests.piece import Piece
from twolane.router.requests.request import Request
from twolane.router.requests.slow_readers import Readers
from twolane.v1 import inference_pb2

log = logging.getLogger(__name__)

_POLL_S = 0.02
# In steps after a token that is held: news before _EARLY are there only because the router is late,
# and after _LATE it goes out alone.
_EARLY, _LATE = 0.5, 1.25
_RELEASE_EVERY_S = 0.001  # at most so often, because each time looks at all that is held


def _nothing() -> None:
    """The callback until one is set."""


class Delivery:
    """The client's end of one admitted request. Close it, which cancels the request if it still
    runs.

    If the client `resumes`, it may be told that its answer moves to another router; the request
    then stays after the close. If the delivery `outlives_client`, the rows stay for a while after
    the client disconnects, because it may come back for the rest.

    `on_news` is called on the event loop whenever `take` may return something. After setting it
    call `take` once, because there may be news already.
    """

    __slots__ = (
        "_deliveries",
        "has_begun",
        "is_over",
        "on_news",
        "outlives_client",
        "request",
        "resumes",
    )

    def __init__(
        self,
        request: Request,
        deliveries: Deliveries,
        *,
        resumes: bool = False,
        outlives_client: bool = False,
    ) -> None:
        self.request = request
        self.resumes = resumes
        self.outlives_client = outlives_client
        self.on_news: Callable[[], None] = _nothing
        self.has_begun = False  # a token was taken
        self.is_over = False  # nothing more will come
        self._deliveries = deliveries

    def first(self) -> inference_pb2.GenerateResponse:
        """The first response, sent as soon as the request is admitted."""
        job = self.request.job
        return inference_pb2.GenerateResponse(
            request_id=job.request_id,
            submission_id=job.submission_id,
            resume_token=job.resume_token,
            seed=job.params.seed,
            model=job.model,
            prompt_tokens=self.request.n_prompt,
            routers=self._deliveries.known.announced_doors(asyncio.get_running_loop().time()),
        )

    def take(self) -> Piece | None:
        """Take everything that waits; None if there is nothing."""
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
        """The error that ended the answer, once it is over; None if it ended normally."""
        return None if self._deliveries.has_moved(self.request) else self.request.error

    def block(self) -> None:
        """The client's transport is full until `unblock`. That time, and the data that waits, are
        bounded."""
        self._deliveries.readers.begin(self.request, asyncio.get_running_loop().time())

    def unblock(self) -> None:
        """The client's transport has room again. Raises `CancelledError` if that took too long."""
        self._deliveries.readers.finish(self.request)

    def close(self) -> None:
        """End the delivery. May be called twice."""
        self.on_news = _nothing
        self._deliveries.discard(self)
        self._deliveries.leave(self)

    async def responses(self) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        """Yield the answer as it comes, and close the delivery at the end. Raises the error that
        ended the answer."""
        with self:
            wake = asyncio.Event()
            self.on_news = wake.set
            wake.set()  # there may be news already
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
    """All deliveries of one router."""

    def __init__(
        self,
        config: ReadersConfig,
        end: Callable[[str, TwolaneError], object],
        keep_rows: Callable[[Request], None],
        known: KnownRouters,
    ) -> None:
        """`end` ends a running request by its submission id; `keep_rows` ends one whose client may
        come back, and leaves its rows at the workers."""
        self.readers = Readers(config)
        self._end = end
        self._keep_rows = keep_rows
        self.known = known
        self.moved_to: Sequence[str] = ()  # the others' doors, once this router hands over
        self.pressure = Pressure()
        # By the request object, because its id may be used again while its client still reads.
        self._open: dict[Request, Delivery] = {}
        self._moved: set[Request] = set()  # whose clients were told to move
        self._held: dict[Delivery, float] = {}  # since when its news waits
        self._release_timer: asyncio.TimerHandle | None = None

    def add(
        self, request: Request, *, resumes: bool = False, outlives_client: bool = False
    ) -> Delivery:
        delivery = Delivery(request, self, resumes=resumes, outlives_client=outlives_client)
        self._open[request] = delivery
        return delivery

    def leave(self, delivery: Delivery) -> None:
        """Its client has disconnected: cancel the request, or keep its rows. Does nothing if the
        client was told to move."""
        request = delivery.request
        if request.is_over or self.has_moved(request):
            return
        if delivery.outlives_client:
            self._keep_rows(request)
        else:
            self._end(request.job.submission_id, CancelledError("the client left"))

    def end_unread(self, now: float, late_s: float = 0.0) -> None:
        """End answers that their clients do not read. A client that reads later gets the reason.
        `late_s`: by how much this call is later than it should be."""
        self.readers.excuse(late_s, now)
        for request, reason in self.readers.cut(now):
            log.info("request %s ends: %s", request.job.request_id, reason.message)
            if not request.is_over:
                self._end(request.job.submission_id, reason)
            request.answer.take()  # unsent data is dropped

    async def hand_over(self, within_s: float) -> None:
        """If there is another router, tell present and later clients that support it to continue
        their answers there. Their requests stay, so that workers keep the rows until another router
        has them. Waits for that for at most `within_s`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        self.moved_to = tuple(self.known.client_doors()[:-1])
        if not self.moved_to:
            return
        for delivery in list(self._open.values()):
            delivery.on_news()
        while loop.time() < until and self._is_moving():  # noqa: ASYNC110 - no single event ends it
            await asyncio.sleep(_POLL_S)

    def note_moved(self, request: Request) -> None:
        self._moved.add(request)

    def has_moved(self, request: Request) -> bool:
        """Whether its client was told to move."""
        return request in self._moved

    def moved(self) -> list[Request]:
        """The moved requests that no other router has yet."""
        return [request for request in self._moved if not request.is_over]

    def _is_moving(self) -> bool:
        is_told = any(delivery.resumes for delivery in self._open.values())
        return is_told or bool(self.moved())

    def discard(self, delivery: Delivery) -> None:
        """Remove a delivery, if present."""
        self._open.pop(delivery.request, None)
        self._held.pop(delivery, None)
        self.readers.forget(delivery.request)

    def tell(self, touched: Iterable[Request]) -> None:
        """Notify the deliveries of requests with news; a request may occur twice. Under pressure
        all but the first and the last news of an answer wait for the next."""
        is_behind = self.pressure.pause_s > 0
        for request in dict.fromkeys(touched):
            delivery = self._open.get(request)
            if delivery is None:
                continue
            if is_behind and self._try_hold(delivery):
                continue
            self._held.pop(delivery, None)
            delivery.on_news()

    def _try_hold(self, delivery: Delivery) -> bool:
        """Let its news wait for the next, which come a step later. If these are there much sooner,
        the router is late, and they wait together. False if they go out now."""
        request, loop = delivery.request, asyncio.get_running_loop()
        now, step_s = loop.time(), request.timeline.step_s
        if not delivery.has_begun or request.is_over or not step_s:
            return False
        if self.pressure.pause_s < step_s:
            return False  # the next token would come too late
        if now - self._held.setdefault(delivery, now) > _EARLY * step_s:
            return False
        self._release_by(self._due(delivery))
        return True

    def _due(self, delivery: Delivery) -> float:
        """When its news goes out alone."""
        wait_s = min(self.pressure.pause_s, _LATE * delivery.request.timeline.step_s)
        return self._held[delivery] + wait_s

    def _release_by(self, due: float) -> None:
        """Let the timer fire then, unless it fires earlier."""
        if self._release_timer is not None:
            if self._release_timer.when() <= due:
                return
            self._release_timer.cancel()
        self._release_timer = asyncio.get_running_loop().call_at(due, self._release)

    def _release(self) -> None:
        """Send what is due, and come back for the earliest of the rest."""
        self._release_timer = None
        now = asyncio.get_running_loop().time()
        dues = {delivery: self._due(delivery) for delivery in self._held}
        late = [delivery for delivery, due in dues.items() if due <= now]
        for delivery in late:
            del self._held[delivery], dues[delivery]
        if dues:
            self._release_by(max(min(dues.values()), now + _RELEASE_EVERY_S))
        for delivery in late:
            delivery.on_news()
