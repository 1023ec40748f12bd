"""Many answers of one client on one gRPC stream; one message has the news of all answers.

    starts ──> router.open, one task each ─> deliveries ──on_news──> those with news ┐
    reads ───> windows                                                               ▼
    cancels                                     one writer: take of each, one message, write

A token costs no task, no message and no gRPC call of its own here; a message with the tokens of all
answers does. An answer that its client does not read stops at its window, and the others continue:

    OPENING ──> RUNNING <──> BLOCKED (its window is full, or the stream is stalled) ──> over
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from grpc.aio import EOF

from twolane.errors import InternalError, InvalidRequestError, TwolaneError
from twolane.router.background import Background
from twolane.router.deliveries import Delivery
from twolane.router.doors.answer_message import AnswerMessage
from twolane.router.requests.piece import Piece
from twolane.rpc.call_gate import CallGate, Context
from twolane.v1 import inference_pb2

log = logging.getLogger(__name__)

WINDOW_TOKENS = 1024
_STALLED_S = 0.1  # after a longer write the stream is stalled: its client does not read
_IDLE_S = 300.0  # a stream without answers is closed after this time
# Of a router that stops: the client has this long to read what was written and to close its side.
# If the router closed the stream first, a client that writes then would lose what it has not read.
_CLOSE_S = 2.0

Opener = Callable[[inference_pb2.AnswerStart], Awaitable[Delivery]]


class _Answer:
    """One answer of a stream. It has no delivery until it is admitted."""

    __slots__ = ("delivery", "is_blocked", "n_read", "n_sent", "opening")

    def __init__(self) -> None:
        self.opening: asyncio.Task[None] | None = None
        self.delivery: Delivery | None = None
        self.is_blocked = False
        self.n_sent = 0  # tokens
        self.n_read = 0

    @property
    def is_window_full(self) -> bool:
        return self.n_sent - self.n_read >= WINDOW_TOKENS


class Multiplexed:
    """One stream. Call `run` once. `open_answer` admits one request, or raises `TwolaneError`."""

    def __init__(self, context: Context, gate: CallGate, open_answer: Opener) -> None:
        self._context = context
        self._gate = gate
        self._peer = context.peer()
        self._open_answer = open_answer
        self._answers: dict[int, _Answer] = {}
        self._highest = 0
        self._news: dict[int, None] = {}  # running answers that may have something to send
        self._message = AnswerMessage(window_tokens=WINDOW_TOKENS)
        # Enough for the first part and the last of every answer that a client may have open, so one
        # that writes all its starts before it reads gets through.
        self._most_parts = 2 * gate.config.calls_per_connection
        self._is_taken = asyncio.Event()  # the message, since `_wait_room` looked
        self._wake = asyncio.Event()
        self._is_stalled = False
        self._is_closed = False  # by the client, which may still read
        self._is_ending = False
        self._wrong: InvalidRequestError | None = None  # the client's protocol error
        self._tasks = Background()

    async def run(self) -> None:
        """Run until the client has closed its side and every answer is over. Raises
        `InvalidRequestError` if the client violates the protocol."""
        try:
            async with self._tasks:
                self._tasks.start(self._read(), name="multiplexed-read")
                await self._write()
        finally:
            for number in list(self._answers):
                self._forget(number)
        if self._wrong is not None:
            raise self._wrong

    def end(self) -> None:
        """The router is stopping: ask the client to close its side once its answers are over."""
        self._is_ending = True
        self._message.end()
        self._wake.set()

    # Messages from the client.

    async def _read(self) -> None:
        try:
            await self._read_all()
        except InvalidRequestError as error:
            self._wrong = error  # reported after the running write: gRPC allows one at a time
        self._is_closed = True
        self._wake.set()

    async def _read_all(self) -> None:
        while (request := await self._context.read()) is not EOF:
            for start in request.starts:
                await self._wait_room()
                self._start(start)
            for read in request.reads:
                self._note_read(read.answer, read.n_tokens)
            for number in request.cancels:
                if number in self._answers:
                    self._forget(number)

    async def _wait_room(self) -> None:
        """Wait until the client has read enough of what is unsent: each start, even one that is
        refused, adds to it."""
        while self._message.n_parts >= self._most_parts:
            self._is_taken.clear()
            await self._is_taken.wait()

    def _start(self, start: inference_pb2.AnswerStart) -> None:
        number = start.answer
        if number <= self._highest:
            text = f"answer {number} comes after answer {self._highest} on this stream"
            raise InvalidRequestError(text, field="answer")
        self._highest = number
        try:
            self._gate.enter(self._peer)
        except TwolaneError as error:
            self._gate.refused[error.reason.lower()] += 1
            self._message.fail(number, error)
            self._wake.set()
            return
        answer = self._answers[number] = _Answer()
        opening = self._open(number, answer, start)
        answer.opening = self._tasks.start(opening, name="multiplexed-answer")

    async def _open(self, number: int, answer: _Answer, start: inference_pb2.AnswerStart) -> None:
        try:
            delivery = await self._open_answer(start)
        except TwolaneError as error:
            self._fail(number, error)
            return
        except Exception:  # any error ends only this answer
            log.exception("a bug in twolane while a request was admitted: only this request fails")
            self._fail(number, InternalError("a bug in twolane; the router's log has its trace"))
            return
        finally:
            answer.opening = None
        answer.delivery = delivery
        self._message.add(number, delivery.first())
        self._block_or_not(number, answer)
        delivery.on_news = partial(self._on_news, number)
        delivery.on_news()

    def _note_read(self, number: int, n_tokens: int) -> None:
        answer = self._answers.get(number)
        if answer is not None:
            answer.n_read = max(answer.n_read, n_tokens)
            self._block_or_not(number, answer)

    # Messages to the client.

    def _on_news(self, number: int) -> None:
        self._news[number] = None
        if not self._is_stalled:
            self._wake.set()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while self._wrong is None and (self._answers or self._message or not self._is_closed):
            if not self._wake.is_set() and not await self._wait():
                return
            self._wake.clear()
            self._take()
            if not self._message:
                continue
            message = self._message.take()
            self._is_taken.set()
            stalled = loop.call_later(_STALLED_S, self._set_stalled, True)
            try:
                await self._context.write(message)
            finally:
                stalled.cancel()
            if self._is_stalled:
                self._set_stalled(False)

    async def _wait(self) -> bool:
        """Wait for news. False if the stream has had no answer for too long."""
        if self._answers:
            await self._wake.wait()
            return True
        try:
            async with asyncio.timeout(_CLOSE_S if self._is_ending else _IDLE_S):
                await self._wake.wait()
        except TimeoutError:
            return bool(self._answers)
        return True

    def _take(self) -> None:
        """Add everything new to the message."""
        news, self._news = self._news, {}
        for number in news:
            answer = self._answers.get(number)
            if answer is None or answer.is_blocked or answer.delivery is None:
                continue
            piece = answer.delivery.take()
            if answer.delivery.is_over:
                self._end(number, piece, answer.delivery.error)
            elif piece is not None:
                answer.n_sent += len(piece.token_ids)
                self._message.add_piece(number, piece)
                if answer.is_window_full:
                    self._block_or_not(number, answer)

    def _end(self, number: int, piece: Piece | None, error: TwolaneError | None) -> None:
        if piece is not None:
            self._message.add(number, piece.to_response())
        if error is None:
            self._forget(number)
        else:
            self._fail(number, error)

    def _fail(self, number: int, error: TwolaneError) -> None:
        self._message.fail(number, error)
        self._forget(number)
        self._wake.set()

    def _forget(self, number: int) -> None:
        """Remove an answer that is over or cancelled."""
        answer = self._answers.pop(number)
        self._gate.leave(self._peer)
        if answer.opening is not None and answer.opening is not asyncio.current_task():
            answer.opening.cancel()
        if answer.delivery is not None:
            answer.delivery.close()
        self._wake.set()

    def _set_stalled(self, is_stalled: bool) -> None:
        """Set whether the stream is stalled: then no answer can be read, and each is bounded as if
        it had its own stream."""
        self._is_stalled = is_stalled
        for number, answer in list(self._answers.items()):
            self._block_or_not(number, answer)
        if not is_stalled:
            self._wake.set()

    def _block_or_not(self, number: int, answer: _Answer) -> None:
        if answer.delivery is None:
            return
        is_blocked = self._is_stalled or answer.is_window_full
        if is_blocked == answer.is_blocked:
            return
        answer.is_blocked = is_blocked
        if is_blocked:
            answer.delivery.block()
            return
        try:
            answer.delivery.unblock()
        except TwolaneError as error:
            self._fail(number, error)
            return
        self._on_news(number)
