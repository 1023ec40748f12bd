"""The blocking client: runs `AsyncClient` on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from twolane.aclient import AsyncClient
from twolane.config import ClientConfig
from twolane.errors import CancelledError, InvalidRequestError
from twolane.prompts import RequestOptions
from twolane.service_status import Caller, ServiceStatus
from twolane.stream import AsyncStream
from twolane.values import Chunk, Completion, Model

ResultT = TypeVar("ResultT")
LAST_WORDS_S = 1.0  # how long `close` waits for calls of other threads to end by themselves


class Client:
    """`AsyncClient` describes each method; these methods block until the result is there.

    Several threads may use it at once, but not a forked process. Close it, or use `with`; the
    thread of a client that is never closed ends with the program.
    """

    def __init__(self, endpoint: str | None = None, *, config: ClientConfig | None = None) -> None:
        self._async = AsyncClient(endpoint, config=config)
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()  # no work is given to the loop once it is told to stop
        self._is_closed = False
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="twolane-client", daemon=True
        )
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return self._async.endpoint

    def connect(self, timeout_s: float | None = None) -> Self:
        """See `AsyncClient.connect`."""
        self._wait(self._async.connect(timeout_s))
        return self

    def generate(self, prompt: str | None = None, **options: Unpack[RequestOptions]) -> Completion:
        """See `AsyncClient.generate`."""
        return self._wait(self._async.generate(prompt, **options))

    def stream(self, prompt: str | None = None, **options: Unpack[RequestOptions]) -> Stream:
        """See `AsyncClient.stream`."""

        async def start() -> AsyncStream:
            return self._async.stream(prompt, **options)

        return Stream(self, self._wait(start()))

    def cancel(self, request_id: str) -> bool:
        """See `AsyncClient.cancel`."""
        return self._wait(self._async.cancel(request_id))

    def models(self) -> list[Model]:
        """See `AsyncClient.models`."""
        return self._wait(self._async.models())

    def status(self, submission_ids: Sequence[str] = ()) -> ServiceStatus:
        """See `AsyncClient.status`."""
        return self._wait(self._async.status(submission_ids))

    def who_am_i(self) -> Caller:
        """See `AsyncClient.who_am_i`."""
        return self._wait(self._async.who_am_i())

    def close(self) -> None:
        """Cancel the running calls (other threads get CancelledError), close the connections, and
        end the thread.

        May be called twice, and from any thread.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            shutdown = asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop)
        shutdown.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def _shut_down(self) -> None:
        await self._async.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, stuck = await asyncio.wait(others, timeout=LAST_WORDS_S)
            for task in stuck:
                task.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)  # only their end matters
        await self._loop.shutdown_asyncgens()

    def _wait(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run `work` on the loop thread. A KeyboardInterrupt here cancels it there."""
        with self._lock:
            if self._is_closed:
                work.close()
                raise InvalidRequestError("this client is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise CancelledError("the client was closed") from None
        finally:
            future.cancel()  # does nothing to a future that is done

    def _post_cancel(self, stream: AsyncStream) -> None:
        with self._lock:
            if not self._is_closed:
                self._loop.call_soon_threadsafe(stream.cancel)


class Stream:
    """`AsyncStream` for a plain `for` loop: an iterator of `Chunk`s and a context manager.

    Closing it early, leaving `with` or dropping the last reference cancels the request.
    """

    def __init__(self, client: Client, stream: AsyncStream) -> None:
        self._client = client
        self._stream = stream

    @property
    def request_id(self) -> str:
        return self._stream.request_id

    @property
    def seed(self) -> int:
        return self._stream.seed

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        chunk = self._client._wait(self._next())
        if chunk is None:
            raise StopIteration
        return chunk

    def completion(self) -> Completion:
        """Read the rest and return the whole answer, including the chunks read before."""
        return self._client._wait(self._stream.completion())

    def cancel(self) -> None:
        """Cancel the request. Returns at once; may be called twice, and from any thread."""
        self._client._post_cancel(self._stream)

    def close(self) -> None:
        self.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()

    async def _next(self) -> Chunk | None:
        return await anext(self._stream, None)
