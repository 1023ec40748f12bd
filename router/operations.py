"""The commands of operators, controllers and other routers to a router, and the status they see.

`Router.operations` acts only on this router: it calls no other routers, and does not use gRPC.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from twolane.errors import CancelledError, UnauthenticatedError, no_worker
from twolane.router.dispatch.dispatch import Dispatcher
from twolane.router.members.host_reports import HostReports
from twolane.router.members.member import Member, MemberState
from twolane.router.members.membership import LEAVES
from twolane.router.operators.changes import Changes
from twolane.router.operators.configuration import Configuration
from twolane.router.operators.controller_mail import ControllerMail
from twolane.router.operators.event_log import EventLog, kept_events
from twolane.router.operators.request_looks import RequestLooks
from twolane.router.operators.rollout_clock import RolloutClock
from twolane.router.status import make_status
from twolane.v1 import admin_pb2, cluster_pb2

MOST_KEPT = 2_000  # of the store's events that are read at once

TOLD_FOR_S = 60.0  # what a controller told holds for so long after it was heard


class Operations:
    """`clock` is the router's; `settle` acts on the dispatcher's decisions."""

    def __init__(
        self, dispatcher: Dispatcher, clock: Callable[[], float], settle: Callable[[], None]
    ) -> None:
        self._dispatcher = dispatcher
        self._clock = clock
        self._settle = settle
        self._started = clock()
        config = dispatcher.board.config
        self.hosts = HostReports(config.membership.gone_after_s)
        self.requests = RequestLooks(dispatcher.board, clock)
        self._store = dispatcher.board.store
        self.events = EventLog(config.router_id, keep=self._store.keep_event)
        self.changes = Changes(self.events)
        self.controllers = ControllerMail()
        self.configuration = Configuration(self.events)
        self.configure = dispatcher.configure
        self._pools: tuple[cluster_pb2.PoolStatus, ...] = ()
        self._scaler: cluster_pb2.ScalerStatus | None = None  # as a controller told last
        self._counters: dict[str, int] = {}  # a controller's, as it told last
        self._scaler_heard = 0.0
        self._rollout = RolloutClock()
        dispatcher.board.wakes = self._wakes
        dispatcher.board.slo_ttft_s = self._slo_ttft_s
        dispatcher.members.on_move = self._worker_moved
        self.events.note("router.up", config.router_id, "the router serves")

    # Commands

    def drain(self, worker_id: str, *, undo: bool = False, hand_over: bool = False) -> None:
        """Drain a worker, or undo that. Raises as `member` and `Dispatcher.drain`."""
        self._dispatcher.drain(self.member(worker_id), undo=undo, hand_over=hand_over)
        self._settle()

    def forget_drain(self, worker_id: str, ended: int) -> None:
        """As `Membership.forget_drain`."""
        self._dispatcher.members.forget_drain(worker_id, ended)

    def take_ticket(self, worker_id: str, ticket: int) -> None:
        """Make a worker's drain final. Raises as `member` and `Dispatcher.take_ticket`."""
        self._dispatcher.take_ticket(self.member(worker_id), ticket)
        self._settle()

    def report_gone(self, epoch: int, *, host: str | None = None) -> None:
        """As `Dispatcher.report_gone`."""
        self._dispatcher.report_gone(epoch, self._clock(), host=host)
        self._settle()

    def supervise(self, request: cluster_pb2.SuperviseRequest) -> cluster_pb2.SuperviseResponse:
        """A controller tells of its hosts and acts, and takes away what it is to do. A request
        without a `controller_id` only reads. So does one of a controller with a lower term than
        another that is heard, except that what it has done already is taken in."""
        now = self._clock()
        self.events.take_in(request.events)
        self.controllers.take_in(request.results)
        name, term = request.controller_id, request.term
        is_obeyed = bool(name) and self.controllers.note(name, term, now)
        if is_obeyed:
            self._obey(request, now)
        status = self.status(with_requests=False)
        return cluster_pb2.SuperviseResponse(
            workers=status.workers,
            acts=self.controllers.acts() if is_obeyed else (),
            proven=[its for its in request.lost if its in self._dispatcher.members.proofs],
            traffic=self._dispatcher.traffic(now),
        )

    def _obey(self, request: cluster_pb2.SuperviseRequest, now: float) -> None:
        """Take a controller's state in place of what was told before."""
        for event in self.hosts.note(request.hosts, now):
            self.events.note(*event)
        self._pools, self._counters = tuple(request.pools), dict(request.counters)
        self._scaler = request.scaler if request.HasField("scaler") else None
        if self._scaler is not None:
            traffic = self._dispatcher.board.traffic
            traffic.ttft_s, traffic.gap_s = self._scaler.ttft_s, self._scaler.gap_s
            self._scaler_heard = now
        self._rollout.note(request.rollout if request.HasField("rollout") else None, now)
        self._dispatcher.board.revisions.tell(request.rollout)
        if request.HasField("config"):
            self.configuration.hold(request.config)
        for wish in request.roles:
            self._dispatcher.wish_roles(wish.epoch, wish.roles)
        self._settle()

    def _told(self) -> cluster_pb2.ScalerStatus | None:
        """What a controller that sizes pools told last. One that is away for a moment comes back;
        none is configured if the latest report has none."""
        is_fresh = self._clock() < self._scaler_heard + TOLD_FOR_S
        return self._scaler if is_fresh else None  # guard: told lately

    def _wakes(self) -> bool:
        """Whether a controller starts workers for requests that have none."""
        told = self._told()
        return told is not None and told.wakes

    def _slo_ttft_s(self) -> float | None:
        """The one to hold: a dry run changes nothing."""
        told = self._told()
        if told is None or told.mode == "dry-run":  # guard: dry run
            return None
        return told.ttft_s

    def cancel_request(self, submission_id: str) -> bool:
        """End it, of any tenant. False if this router does not answer it."""
        error = CancelledError("an operator cancelled this request")
        found = self._dispatcher.end(submission_id, error, self._clock())
        self._settle()
        return found

    def end_of_keys(self, names: Collection[str]) -> None:
        """These API keys are not valid any more: end the requests made with them."""
        if not names:
            return
        requests = self._dispatcher.board.requests
        for request in [r for r in requests.values() if r.job.caller.name in names]:
            error = UnauthenticatedError(f"API key {request.job.caller.name} is not valid any more")
            self._dispatcher.end(request.job.submission_id, error, self._clock())
        self._settle()

    async def kept_events(
        self, wanted: admin_pb2.ListEventsRequest
    ) -> list[cluster_pb2.ClusterEvent]:
        """The events in the store that routers share, which outlive them."""
        kept = await self._store.events(MOST_KEPT)
        return kept_events(kept, wanted, time.time())

    # Status

    def member(self, worker_id: str) -> Member:
        """The worker with that id. Raises `InvalidRequestError` if it is unknown."""
        members = self._dispatcher.members
        found = members.named(worker_id)
        if found is None:
            here = {its.worker_id for its in members if its.state is not MemberState.GONE}
            raise no_worker(worker_id, here)
        return found

    def members(self) -> Iterable[Member]:
        """All that are known, those that are gone lately included."""
        return self._dispatcher.members

    def label_of(self, submission_id: str) -> str:
        """What its client calls a request that runs here; empty: it does not."""
        request = self._dispatcher.board.requests.get(submission_id)
        return request.job.request_id if request is not None else ""

    def status(self, *, with_requests: bool = True) -> cluster_pb2.GetClusterStatusResponse:
        board, now = self._dispatcher.board, self._clock()
        status = make_status(board, started=self._started, now=now, with_requests=with_requests)
        status.hosts.extend(self.hosts.current(now))
        for host in status.hosts:
            for each in host.insecure_listeners:
                status.insecure_listeners.append(f"the agent of {host.name} ({each})")
        status.controllers.extend(self.controllers.controllers(now))
        if status.controllers:
            status.pools.extend(self._pools)
            status.controller_counters.update(self._counters)
            pool_of = {name: pool.pool for pool in self._pools for name in pool.names}
            for worker in status.workers:  # it announces the one that it was started in
                worker.pool = pool_of.get(worker.worker.worker_id, worker.pool)
            if self._scaler is not None:
                status.scaler.CopyFrom(self._scaler)
            if (rollout := self._rollout.status(now)) is not None:
                status.rollout.CopyFrom(rollout)
        return status

    def _worker_moved(self, member: Member, why: str) -> None:
        name, state = member.worker_id, member.state.name.lower()
        text = f"worker {name} ({member.epoch:016x}) is {state}: {why}"
        kind = "left" if why == LEAVES else state  # who says that it goes is no trouble
        self.events.note(f"worker.{kind}", name, text)
