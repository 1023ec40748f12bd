"""Operators' commands to drain workers, and to watch drains."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from twolane.errors import PreconditionError, UnavailableError
from twolane.router.dispatch.drain_check import check_epoch, check_ticket, check_undo
from twolane.router.doors.admin.audited_acts import AuditedActs
from twolane.router.doors.peer_calls import PeerCalls
from twolane.router.members.member import MemberState
from twolane.router.router import Router
from twolane.rpc.call_gate import Context
from twolane.rpc.handlers import Handler, unary, unary_stream
from twolane.v1 import acts_pb2, admin_pb2, cluster_pb2

_LOOK_EVERY_S = 0.05
_CONFIRMED_WITHIN_S = 5.0


class Drains:
    """`peers` calls the other routers; `audited` audits."""

    def __init__(self, router: Router, peers: PeerCalls, audited: AuditedActs) -> None:
        self._router = router
        self._peers = peers
        self._audited = audited

    def methods(self) -> Mapping[str, Handler]:
        return {
            "DrainWorker": unary(cluster_pb2.DrainWorkerRequest, self._drain_worker),
            "WatchDrain": unary_stream(admin_pb2.WatchDrainRequest, self._watch_drain),
        }

    async def _drain_worker(
        self, request: cluster_pb2.DrainWorkerRequest, context: Context
    ) -> cluster_pb2.DrainWorkerResponse:
        what = "take-ticket" if request.take_ticket else "undrain" if request.undo else "drain"

        async def work() -> acts_pb2.ActResponse:
            return await self._drain(request)

        done = await self._audited.do(context, what, request.worker_id, request.act, work)
        return cluster_pb2.DrainWorkerResponse(response=done)

    async def _drain(self, request: cluster_pb2.DrainWorkerRequest) -> acts_pb2.ActResponse:
        name = request.worker_id
        member = self._router.operations.member(name)
        check_epoch(member, request.expect_epoch)
        done = acts_pb2.ActResponse(dry_run=request.act.dry_run)
        before = member.state.name.lower()
        after = "ticket taken" if request.take_ticket else "alive" if request.undo else "draining"
        if before != after:
            done.changes.add(subject=name, before=before, after=after)
        if request.act.dry_run:
            check_undo(member, undo=request.undo)
            if request.take_ticket:
                check_ticket(member, request.take_ticket)
        elif request.take_ticket:
            await self._take_ticket(name, request.take_ticket)
        else:
            self._router.operations.drain(name, undo=request.undo, hand_over=request.hand_over)
            await self._peers.drain(request)
        return done

    async def _take_ticket(self, worker_id: str, ticket: int) -> None:
        """Take a drain's ticket. Returns when the worker has confirmed it, because a concurrent
        undo may have reached the worker first."""
        member = self._router.operations.member(worker_id)
        self._router.operations.take_ticket(worker_id, ticket)
        try:
            async with asyncio.timeout(_CONFIRMED_WITHIN_S):
                while not member.load.drain.is_taken:
                    check_ticket(member, ticket)
                    await asyncio.sleep(_LOOK_EVERY_S)
        except TimeoutError:
            raise UnavailableError(f"{worker_id} has not confirmed the ticket") from None

    async def _watch_drain(self, request: admin_pb2.WatchDrainRequest, context: Context) -> None:
        member = self._router.operations.member(request.worker_id)
        check_epoch(member, request.expect_epoch)
        told: admin_pb2.WatchDrainResponse | None = None
        while True:
            if not member.drains:
                raise PreconditionError(f"{member.worker_id} is not draining")
            news = admin_pb2.WatchDrainResponse(
                worker=member.announce.worker,
                state=member.state.name.lower(),
                drain=member.load.drain if member.load.HasField("drain") else None,
            )
            if news != told:
                await context.write(news)
                told = news
            if news.drain.has_ticket or member.state is MemberState.GONE:
                return
            await asyncio.sleep(_LOOK_EVERY_S)
