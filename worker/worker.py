"""A worker: an engine, one role or both, streams to routers and peers. No sockets in here.

                     routers                                  other workers
                        |  serve_session(link)                     |  serve_peer(link), wire.dial
                   Sessions --- Commands ------.              .-- Peers
                        ^           |          v              v     ^
                        |           `--------> Roles (rows, pages) -'
                        |                        ^
                      EventOutbox <-------------- StepLoop --- StepRunner --- Engine

`run` runs the worker until it is cancelled. It raises if the engine fails or an invariant is
violated, in a step, in a transport's callback, or while handling a router's or peer's message: the
process must end then, and its routers resume its rows elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from twolane.engine.step import SampledToken
from twolane.errors import OverloadedError, PreconditionError, TwolaneError
from twolane.fault import Fault
from twolane.kvtransfer.receive.driver import PeerLink
from twolane.v1 import facts_pb2, worker_pb2
from twolane.worker.attempts.registry import Registry
from twolane.worker.check.alone import Alone
from twolane.worker.commands import Commands
from twolane.worker.config import WorkerConfig
from twolane.worker.context import WorkerContext
from twolane.worker.drain import Drain
from twolane.worker.errors import RouterInUseError, StaleEpochError
from twolane.worker.integrity import check_integrity
from twolane.worker.observer import NullObserver, WorkerObserver
from twolane.worker.offered_roles import OfferedRoles, RoleName
from twolane.worker.peers.peers import Peers, Wiring
from twolane.worker.role import Roles
from twolane.worker.sessions.session import SessionLink
from twolane.worker.sessions.sessions import Sessions
from twolane.worker.steps.step_loop import StepLoop
from twolane.worker.steps.step_runner import StepRunner
from twolane.worker.steps.step_watch import StepWatch

log = logging.getLogger(__name__)


class Worker:
    """Composed by the caller from its parts. `endpoint` is set when its server has a port."""

    def __init__(
        self,
        config: WorkerConfig,
        context: WorkerContext,
        roles: Roles,
        runner: StepRunner,
        wire: Wiring,
        *,
        observer: WorkerObserver | None = None,
        offered: Iterable[RoleName] = (),
    ) -> None:
        """`offered`: of its roles, those that it has for routers at first; empty: all."""
        self.config = config
        self.context = context
        self.roles = roles
        self.offer = OfferedRoles(roles, offered)
        self.endpoint = ""
        self.makes_dtypes = wire.makes_dtypes
        self._runner = runner
        self._registry = Registry(config.sessions)
        self._drained = asyncio.Event()
        self._fault = Fault()
        self._told_changes = 0  # of the offered roles
        observer = observer or NullObserver()
        self._watch = StepWatch(config.step_watch)
        self._steps = StepLoop(
            roles,
            runner,
            config.limits,
            watch=self._watch,
            returns=context.returns,
            ship=self._ship,
            observer=observer,
            on_idle=lambda now: self._sessions.report_idle(now),
        )
        self._peers = Peers(context, roles, wire, wake=self._steps.wake)
        self._drain = Drain(
            context,
            roles,
            self._registry,
            self._watch,
            sessions=lambda: self._sessions.open,
            grace_s=config.sessions.grace_s,
        )
        self._commands = Commands(
            context, roles, self._registry, self._steps, self._peers, self._drain, self.offer
        )
        self._sessions = Sessions(
            context,
            config.sessions,
            self._registry,
            observer,
            describe_load=self.load,
            describe_address=lambda: self.address,
        )

    # -- life -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until cancelled; then no step runs and every stream to a router is closed."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._steps.run(), name="steps")
                tasks.create_task(self._peers.run(), name="peers")
                tasks.create_task(self._beat(), name="beat")
                tasks.create_task(self._fault.wait(), name="fault")
        finally:
            self._sessions.close()
            await self._runner.close()

    async def serve_session(self, link: SessionLink) -> None:
        """Serve a router's stream until it ends; see `Sessions.serve` for what it raises."""
        with self._fault.watch(TwolaneError, StaleEpochError, RouterInUseError):
            await self._sessions.serve(link, self._commands)

    async def serve_peer(self, link: PeerLink) -> bool:
        """Serve a prefill worker's stream until it ends. False if there is no decode role here."""
        return await self._peers.serve(link)

    async def answer_alone(self, request: facts_pb2.AnswerAloneRequest) -> list[SampledToken]:
        """The answer of this engine alone, for a check: see `twolane.worker.check.alone`. Raises as
        `Alone`, `OverloadedError` while another one runs, and `PreconditionError` while this worker
        drains, or is another incarnation than the one that is meant."""
        if request.expect_epoch not in (0, self.context.epoch):
            raise PreconditionError(f"{self.context.worker_id} was restarted")
        if self._drain.is_on:
            raise PreconditionError(f"{self.context.worker_id} drains: it takes no new rows")
        former = self.roles.check
        if former is not None and former.rows:
            raise OverloadedError("another check runs on this worker", retry_after_s=1.0)
        alone = Alone(request, self.context, asyncio.get_running_loop().time())

        def leave(now: float) -> None:
            alone.stop()
            if self.roles.check is alone:
                self.roles.check = None

        self.roles.check = alone
        self._steps.wake()
        try:
            return await alone.answer
        finally:
            self._steps.submit(leave)

    def drain(self, enabled: bool = True) -> None:
        """Take no new rows; running rows finish. Routers are told at once."""
        self._drain.is_stopping = enabled
        self._sessions.beat(asyncio.get_running_loop().time(), every_s=0.0)
        self._steps.wake()

    @property
    def is_drained(self) -> bool:
        """No row is left: a clean stop loses nothing."""
        return self._drain.is_on and self._registry.n_live == 0

    async def wait_drained(self) -> None:
        """Wait until a worker that takes no new rows has none left."""
        await self._drained.wait()

    # -- looking in -------------------------------------------------------------------------

    @property
    def routers(self) -> list[worker_pb2.RouterAddress]:
        """The routers that have a session with it."""
        return self._sessions.routers

    @property
    def address(self) -> worker_pb2.WorkerAddress:
        return worker_pb2.WorkerAddress(
            worker_id=self.context.worker_id, epoch=self.context.epoch, endpoint=self.endpoint
        )

    @property
    def step_s(self) -> float:
        """Moving average of step durations."""
        return self._watch.step_s

    @property
    def step_age_s(self) -> float:
        """Age of the oldest step in flight; 0 if there is none."""
        return self._watch.age_s(asyncio.get_running_loop().time())

    def load(self) -> worker_pb2.LoadReport:
        counts = self.context.pages.counts()
        now = asyncio.get_running_loop().time()
        p50_s, p99_s = self._watch.pace.quantiles_s()
        prefill_per_s, decode_per_s = self._watch.pace.tokens_per_s(now)
        load = worker_pb2.LoadReport(
            pages=worker_pb2.PageCounts(
                quarantined=counts.quarantined,
                used=counts.used,
                pinned=counts.pinned,
                cached=counts.cached,
                free=counts.free,
            ),
            draining=self._drain.is_on,
            drained=self.is_drained,
            step_s=self._watch.step_s,
            step_p50_s=p50_s,
            step_p99_s=p99_s,
            prefill_tokens_per_s=prefill_per_s,
            decode_tokens_per_s=decode_per_s,
            step_age_s=self.step_age_s,
            step_bound_s=self._watch.bound_s,
            transports=self._peers.transports,
            drain=self._drain.report(now),
            drains=self._drain.n_begun,
        )
        for role in self.roles.all:
            role.report(load, now)
        self.offer.report(load)
        load.done.CopyFrom(self._steps.totals.done)
        return load

    def dropped(self) -> dict[str, int]:
        """Ignored messages by reason: of routers, and of transfers in both directions. Those that
        begin with `landing_` are frames and connections that bring pages."""
        total: dict[str, int] = dict(self.context.dropped)
        for reason, n in self._peers.dropped.items():
            total[f"landing_{reason}"] = n
        both: list[Mapping[str, int]] = []
        if self.roles.prefill is not None:
            both.append(self.roles.prefill.sender.dropped)
        if self.roles.decode is not None:
            both.append(self.roles.decode.receiver.dropped)
        for dropped in both:
            for reason, n in dropped.items():
                total[f"transfer_{reason}"] = total.get(f"transfer_{reason}", 0) + n
        return total

    def check_integrity(self) -> None:
        """Raises AssertionError that names the inconsistency. Linear in the number of pages."""
        check_integrity(self.context, self.roles)

    def inspect(self) -> worker_pb2.InspectResponse:
        response = worker_pb2.InspectResponse(
            worker=self.address,
            roles=self.offer.offered,
            model=self.context.spec.model,
            fingerprint=self.context.spec.fingerprint,
            load=self.load(),
            integrity_error=self._integrity_error(),
            dropped=self.dropped(),
            transports={peer.worker_id: peer.transport for peer in self._peers.transports},
        )
        for role in self.roles.all:
            for row in role.rows:
                response.rows.add(
                    key=row.attempt.key,
                    state=row.state.value,
                    tokens=row.n_tokens,
                    pages=len(row.pages),
                )
        return response

    # -- inside -----------------------------------------------------------------------------

    def _integrity_error(self) -> str:
        try:
            self.check_integrity()
        except AssertionError as error:
            return str(error) or "the integrity check failed"
        return ""

    def _ship(self, now: float) -> None:
        self._peers.flush(now)
        self._sessions.ship(now)
        if self._drain.look(now) or self._told_changes < self.offer.n_changes:
            self._told_changes = self.offer.n_changes
            self._sessions.beat(now, every_s=0.0)
        if self.is_drained:
            self._drained.set()
        else:
            self._drained.clear()

    async def _beat(self) -> None:
        """Periodic work: heartbeats, lost routers, passed deadlines, the step watchdog.

        It also wakes the step loop, in case pages came free without an event.
        """
        clock = asyncio.get_running_loop().time
        was_late = False
        while True:
            await asyncio.sleep(self.config.sessions.load_every_s / 4)
            self._watch.look(clock())
            is_late = self._watch.is_late(clock())
            if is_late and not was_late:
                log.error("a step has run for %.1f s: the engine may hang", self.step_age_s)
            was_late = is_late
            self._commands.expire(clock())
            self._sessions.beat(clock(), self.config.sessions.load_every_s)
            self._steps.wake()
