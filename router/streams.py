"""Answers on their way to clients: each is a loop that sends what has come since it last did.

dispatcher ──> request.answer ──wake──> stream ──> the client
                                          └──> `moved`: the client goes on at another router
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

from twolane.errors import CancelledError, TwolaneError
from twolane.router.config import ReadersConfig
from twolane.router.requests.readers import Readers
from twolane.router.requests.request import Request
from twolane.v1 import inference_pb2

log = logging.getLogger(__name__)

_POLL_S = 0.02


class Streams:
    """Of one router. `end` ends a request by its submission id, `routers` are the client
    doors of all routers at a time, our own last."""

    def __init__(
        self,
        config: ReadersConfig,
        end: Callable[[str, TwolaneError], bool],
        routers: Callable[[float], Sequence[str]],
    ) -> None:
        # by the very request: its id is free for another while its client still reads
        self._wakes: dict[Request, asyncio.Event] = {}
        self._readers = Readers(config)
        self._end = end
        self._routers = routers
        self._is_moving = False
        self._n_resumable = 0  # streams of clients that can be told
        self._moved: set[Request] = set()  # whose clients have been told so

    async def run(
        self, request: Request, *, resumes: bool
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        """The first response tells what the request is; the last one its end, or that it has moved,
        if its client `resumes`. Raises what ended it. Closed early, it ends the request."""
        wake = self._wakes[request] = asyncio.Event()
        wake.set()  # there may be news since it was submitted
        loop = asyncio.get_running_loop()
        self._n_resumable += resumes
        try:
            self._readers.begin(request, loop.time())
            yield self._first(request)
            self._readers.finish(request)
            is_over = False
            while not is_over:
                await wake.wait()
                wake.clear()
                is_over = request.is_over  # before the yield: what comes during it waits for us
                response = request.answer.take()
                if is_over and request.ledger is not None:
                    response = response or inference_pb2.GenerateResponse()
                    response.finish_reason = request.finish_reason
                    response.ledger.CopyFrom(request.ledger)
                elif resumes and self._is_moving and not is_over:
                    is_over = True
                    response = response or inference_pb2.GenerateResponse()
                    response.moved = True
                    response.routers.extend(self._routers(loop.time())[:-1])
                    self._moved.add(request)
                if response is not None:
                    self._readers.begin(request, loop.time())
                    yield response
                    self._readers.finish(request)
            if request.error is not None and request not in self._moved:
                raise request.error
        finally:
            self._n_resumable -= resumes
            del self._wakes[request]
            self._readers.forget(request)
            if not request.is_over and request not in self._moved:
                self._end(request.job.submission_id, CancelledError("the client left"))

    def wake(self, requests: Iterable[Request]) -> None:
        """There is news for their clients."""
        for request in requests:
            wake = self._wakes.get(request)
            if wake is not None:
                wake.set()

    async def hand_over(self, within_s: float) -> None:
        """If there is another router, tell clients that can that their answers go on elsewhere, now
        and from now on. The requests stay, so that their rows are kept until another router has
        them; waits for that."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        if len(self._routers(loop.time())) < 2:
            return
        self._is_moving = True
        self.wake(list(self._wakes))
        await asyncio.sleep(0)  # the streams say it
        while loop.time() < until and (self.moved() or self._n_resumable):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)

    def moved(self) -> list[Request]:
        """Those that no other router has yet."""
        self._moved = {request for request in self._moved if not request.is_over}
        return list(self._moved)

    def end_unread(self, now: float) -> None:
        """End what its client does not read; it hears why when it reads on."""
        for request, reason in self._readers.cut(now):
            log.info("request %s ends: %s", request.job.request_id, reason.message)
            if not request.is_over:
                self._end(request.job.submission_id, reason)
            request.answer.take()  # and nobody gets it

    def _first(self, request: Request) -> inference_pb2.GenerateResponse:
        job = request.job
        return inference_pb2.GenerateResponse(
            request_id=job.request_id,
            submission_id=job.submission_id,
            resume_token=job.resume_token,
            seed=job.params.seed,
            model=job.model,
            prompt_tokens=request.n_prompt,
            routers=self._routers(asyncio.get_running_loop().time()),
        )
