"""Announces this worker to every router each second. The router then opens a session.

configured, or named by a router's answer, or open to a session ──> announced to each second
                 ^                                                       │
                 └────── not configured, and silent for a minute ────────┘
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import grpc

from twolane.kvtransfer.link.process_identity import host_identity
from twolane.rpc.log_rate import LogRate
from twolane.security.identity import Role
from twolane.v1 import cluster_pb2, cluster_pb2_grpc
from twolane.worker.errors import DisplacedError
from twolane.worker.worker import Worker

log = logging.getLogger(__name__)

_CALL_S = 2.0
_SILENCE_S = 3.0
_FORGET_S = 60.0  # a silent router that only others have named
MOST_ROUTERS = 256
_NO_ANSWER = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
)


class Announcer:
    """Call `run` until cancelled, then `leave` for a clean stop. `run` raises `DisplacedError` when
    a router has declared this worker dead: it may come back as another incarnation."""

    def __init__(self, worker: Worker, *, metrics_endpoint: str = "") -> None:
        self._worker = worker
        self._metrics_endpoint = metrics_endpoint
        self._credentials = worker.config.credentials
        self.heard_at: float | None = None  # when a router has last answered, in the loop's time
        self._routers: set[str] = set()  # those that are announced to
        self._tasks: asyncio.TaskGroup | None = None  # while it runs

    async def run(self) -> None:
        async with asyncio.TaskGroup() as self._tasks:
            self._begin(self._worker.config.routers)
        self._tasks = None

    async def leave(self) -> None:
        """Announce to every router that this worker leaves; waits briefly for routers that do not
        answer."""
        async with asyncio.TaskGroup() as tasks:
            for router in self._routers | {*self._worker.config.routers}:
                tasks.create_task(self._announce_leaving(router))

    def _begin(self, routers: Iterable[str]) -> None:
        """Announce to these too."""
        for router in routers:
            if router and router not in self._routers and len(self._routers) < MOST_ROUTERS:
                assert self._tasks is not None
                self._routers.add(router)
                self._tasks.create_task(self._announce_regularly(router), name=f"announce-{router}")

    def describe(self, *, leaving: bool = False) -> cluster_pb2.AnnounceRequest:
        worker, spec = self._worker, self._worker.context.spec
        return cluster_pb2.AnnounceRequest(
            worker=worker.address,
            roles=worker.offer.offered,
            model=spec.model,
            fingerprint=spec.fingerprint,
            n_pages=spec.n_pages,
            page_tokens=spec.page_tokens,
            max_context_tokens=spec.max_context_tokens,
            vocab_size=spec.vocab_size,
            eos_token_ids=spec.eos_token_ids,
            decode_rows=worker.config.limits.decode_rows,
            metrics_endpoint=self._metrics_endpoint,
            leaving=leaving,
            layout=spec.layout,
            makes_dtypes=worker.makes_dtypes,
            pool=worker.config.pool,
            devices=worker.config.devices,
            host=worker.config.host_name,
            host_identity=host_identity(),
            routers=worker.routers,
            insecure_listeners=worker.config.insecure_listeners,
        )

    async def _announce_regularly(self, router: str) -> None:
        clock = asyncio.get_running_loop().time
        router_log = _RouterLog(router, clock())
        while not router_log.is_forgotten(clock()) or router in self._worker.config.routers:
            # a channel that fails is made anew: its certificate may have been renewed
            async with self._credentials.channel(router, Role.ROUTER) as channel:
                error = await self._announce_until_refused(router, channel, router_log)
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise DisplacedError(f"router {router}: {error.details()}") from error
            router_log.failed(error, clock())
            await asyncio.sleep(self._worker.config.announce_every_s)
        self._routers.discard(router)

    async def _announce_until_refused(
        self, router: str, channel: grpc.aio.Channel, router_log: _RouterLog
    ) -> grpc.aio.AioRpcError:
        """Announce each second until it fails; returns how."""
        clock = asyncio.get_running_loop().time
        while True:
            try:
                answer = await self._announce(router, channel, self.describe())
            except grpc.aio.AioRpcError as error:
                return error
            router_log.known(clock())
            self.heard_at = clock()
            named = [*answer.routers, *self._worker.routers]
            self._begin(other.workers_endpoint for other in named)
            await asyncio.sleep(answer.interval_ms / 1000 or self._worker.config.announce_every_s)

    async def _announce_leaving(self, router: str) -> None:
        async with self._credentials.channel(router, Role.ROUTER) as channel:
            try:
                await self._announce(router, channel, self.describe(leaving=True))
            except grpc.aio.AioRpcError as error:  # it has ended before us, as in a clean stop
                log.debug("router %s did not hear that we leave: %s", router, error.details())

    async def _announce(
        self, router: str, channel: grpc.aio.Channel, request: cluster_pb2.AnnounceRequest
    ) -> cluster_pb2.AnnounceResponse:
        answer: cluster_pb2.AnnounceResponse
        stub = cluster_pb2_grpc.MembershipServiceStub(channel)
        answer = await stub.Announce(
            request, timeout=_CALL_S, metadata=self._credentials.metadata(router)
        )
        return answer


class _RouterLog:
    """What is logged about one router: that it accepts this worker, that it refuses it (at most
    every ten seconds), or that it has been silent for longer than a restart or a clean stop takes.
    """

    def __init__(self, router: str, now: float) -> None:
        self._router = router
        self._is_known = False
        self._answered = now
        self._rate = LogRate()

    def is_forgotten(self, now: float) -> bool:
        """Whether it has been silent for longer than any restart."""
        return now - self._answered > _FORGET_S

    def known(self, now: float) -> None:
        if not self._is_known:
            log.info("router %s knows this worker", self._router)
        self._is_known = True
        self._answered = now

    def failed(self, error: grpc.aio.AioRpcError, now: float) -> None:
        code, text = error.code(), error.details()
        is_answer = code not in _NO_ANSWER
        if is_answer:
            self._answered = now
        elif now - self._answered < _SILENCE_S:
            return
        self._is_known = False
        if self._rate.take(code, now):
            how = "refuses this worker" if is_answer else "does not answer"
            level = logging.ERROR if is_answer else logging.WARNING
            log.log(level, "router %s %s: %s: %s", self._router, how, code.name, text)
