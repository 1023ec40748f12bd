"""Carries out the commands of routers.

A command that may free pages which a running step reads waits for the step's end
(`StepLoop.submit`); all others are carried out at once. Only the router that assigned a row, or has
adopted it, may command it. Ignored commands are counted by reason; an ASSIGN and a RETARGET are
answered even then.
"""

from __future__ import annotations

from twolane.kvtransfer.key import Key
from twolane.refusals import Refusal
from twolane.v1 import worker_pb2
from twolane.worker.assign_check import check_assign
from twolane.worker.attempts import takeover
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.attempts.attempt_log import AttemptLog, Listener
from twolane.worker.attempts.owner import Owner
from twolane.worker.attempts.registry import Registry
from twolane.worker.context import WorkerContext
from twolane.worker.drain import Drain
from twolane.worker.errors import RowRefusedError
from twolane.worker.event_outbox import row_event
from twolane.worker.offered_roles import OfferedRoles
from twolane.worker.peers.peers import Peers
from twolane.worker.role import Roles
from twolane.worker.rows import Row
from twolane.worker.sessions.session import Session
from twolane.worker.steps.step_loop import StepLoop

_Kind = worker_pb2.RowEvent
_PREFILL, _DECODE = worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE


class Commands:
    """Implements `twolane.worker.sessions.sessions.CommandHandler`."""

    def __init__(
        self,
        context: WorkerContext,
        roles: Roles,
        registry: Registry,
        steps: StepLoop,
        peers: Peers,
        drain: Drain,
        offer: OfferedRoles,
    ) -> None:
        self._context = context
        self._roles = roles
        self._registry = registry
        self._steps = steps
        self._peers = peers
        self._drain = drain
        self._offer = offer

    def handle(self, session: Session, request: worker_pb2.SessionRequest, now: float) -> None:
        match request.WhichOneof("command"):
            case "assign":
                self._assign(session, request.assign, now)
            case "cancel":
                for key in request.cancel.keys:
                    self._cancel(AttemptId.of(key), session.owner, now)
            case "retarget":
                self._retarget(session, request.retarget, now)
            case "attach":
                self._attach(session, request.attach, now)
            case "find":
                found = takeover.find(self._registry, request.find)
                session.send(worker_pb2.SessionResponse(found=[found]), now)
            case "adopt":
                self._adopt(session, request.adopt, now)
            case "judge_peer":
                self._judge(request.judge_peer.epoch, now, asks=session.owner)
            case "peer_gone":
                self._judge(request.peer_gone.epoch, now, asks=None)
                if self._roles.decode is not None:
                    self._roles.decode.receiver.peer_gone(request.peer_gone.epoch, now)
            case "drain":
                if why_not := self._drain.command(request.drain, now):
                    self._drop(why_not)
            case "set_roles":
                if why_not := self._offer.change(request.set_roles.roles):
                    self._drop(why_not)
            case "heartbeat":
                session.confirmed = max(session.confirmed, request.heartbeat.heard)
            case "open":
                self._drop("duplicate_open")
            case _:
                self._drop("malformed")
        self._peers.flush(now)
        self._steps.wake()

    def expire(self, now: float) -> None:
        """Cancel rows without a listener, and rows past their deadline."""
        for log in self._registry.expire(now):
            self._cancel(log.attempt, log.owner, now)

    def _cancel(self, attempt: AttemptId, owner: Owner, now: float) -> None:
        """Stop the attempt after the running step, and refuse it from now on."""
        if not self._registry.cancel(attempt, owner, now):
            self._drop("not_owner")
            return

        def stop(then: float) -> None:
            for role in self._roles.all:
                role.cancel(attempt, then)

        self._steps.submit(stop)

    # -- assign -----------------------------------------------------------------------------

    def _assign(self, session: Session, assign: worker_pb2.Assign, now: float) -> None:
        attempt = AttemptId.of(assign.key)
        if not self._is_for_this_worker(assign):
            self._refuse(session, assign, Refusal.EPOCH, now)
            return
        if (log := self._registry.find(attempt)) is not None:
            if log.owner == session.owner:
                self._drop("duplicate_assign")
                session.send(self._registry.attach(attempt, 0, session), now)
            else:
                self._tell_taken(session, assign.key, now)
            return
        left_s = assign.time_left_ms / 1000
        deadline_s = now + left_s if left_s > 0 else None
        log = AttemptLog.of(assign, session, owner=session.owner, deadline_s=deadline_s)
        if takeover.is_barred(self._registry, log):  # guard: barred assign
            self._tell_taken(session, assign.key, now)
            return
        for former in takeover.outranked(self._registry, log):  # guard: outranked
            if former.owner != session.owner:
                self._take(former.session, former, now)
            former.hand_to(session.owner, log.fence, now)
            self._cancel(former.attempt, session.owner, now)
        if why_not := self._registry.admit(log):
            self._refuse(session, assign, why_not, now)
            self._refuse_pages(assign, now)
            return
        try:
            self._start(assign, log, now)
        except RowRefusedError as refusal:
            self._refuse_pages(assign, now)
            self._context.outbox.event(_refusal(assign, refusal.reason, refusal.message))

    def _refuse(
        self, session: Session, assign: worker_pb2.Assign, reason: Refusal, now: float
    ) -> None:
        """Refuse without keeping a log. (What `_start` refuses has a log, for ATTACH.)"""
        self._drop(reason)
        session.send(worker_pb2.SessionResponse(rows=[_refusal(assign, reason)]), now)

    def _start(self, assign: worker_pb2.Assign, log: AttemptLog, now: float) -> None:
        if self._drain.is_on:
            raise RowRefusedError(Refusal.DRAINING, "this worker takes no new rows")
        params = check_assign(assign, self._context.spec)
        role = self._roles.prefill if _PREFILL in assign.roles else self._roles.decode
        wanted = {_PREFILL: self._roles.prefill, _DECODE: self._roles.decode}
        if role is None or any(wanted.get(name) is None for name in assign.roles):
            raise RowRefusedError(
                Refusal.NO_ROLE, "this worker does not have every role of the row"
            )
        goes_out = _DECODE not in assign.roles
        other = assign.decode if goes_out else assign.prefill
        if len(assign.roles) == 1 and not (other.epoch and other.worker_id):
            raise RowRefusedError(Refusal.INVALID, "the other worker's address is missing")
        number = self._context.next_number()
        row = Row(assign, params, self._context.spec, number=number, arrived_s=now, log=log)
        role.accept(row, now)
        if goes_out:
            self._peers.connect(assign.decode)

    def _is_for_this_worker(self, assign: worker_pb2.Assign) -> bool:
        """Whether the roles that the ASSIGN names are for this incarnation."""
        addresses = {_PREFILL: assign.prefill, _DECODE: assign.decode}
        epochs = {addresses[name].epoch for name in assign.roles if name in addresses}
        return epochs <= {0, self._context.epoch}

    def _refuse_pages(self, assign: worker_pb2.Assign, now: float) -> None:
        """Let the prefill worker learn soon that its RESERVE will not be granted."""
        if self._roles.decode is not None and list(assign.roles) == [_DECODE]:
            key = Key(*AttemptId.of(assign.key), assign.prefill.epoch, self._context.epoch)
            self._roles.decode.receiver.cancel(key, now)

    # -- others -----------------------------------------------------------------------------

    def _attach(self, session: Session, command: worker_pb2.Attach, now: float) -> None:
        attempt = AttemptId.of(command.key)
        if not self._is_taken(session, command.key, attempt, now):
            from_index, row = command.from_index, command.row
            session.send(self._registry.attach(attempt, from_index, session, row=row), now)

    def _adopt(self, session: Session, command: worker_pb2.Adopt, now: float) -> None:
        dropped = self._context.dropped
        answer, losers = takeover.adopt(self._registry, command, session.owner, dropped, now)
        for listener, log in losers:
            self._take(listener, log, now)
        session.send(worker_pb2.SessionResponse(adopted=[answer]), now)

    def _take(self, listener: Listener | None, log: AttemptLog, now: float) -> None:
        """Tell the router that has listened to an attempt that it is another's now."""
        if listener is not None:
            taken = worker_pb2.RowEvent(key=log.attempt.key, kind=_Kind.KIND_TAKEN)
            listener.send(worker_pb2.SessionResponse(rows=[taken]), now)

    def _is_taken(
        self, session: Session, key: worker_pb2.AttemptKey, attempt: AttemptId, now: float
    ) -> bool:
        """Whether another router owns the row; if so, reports that to this session, under `key`."""
        log = self._registry.find(attempt)
        if log is None or log.owner == session.owner:  # guard: owner
            return False
        self._tell_taken(session, key, now)
        return True

    def _tell_taken(self, session: Session, key: worker_pb2.AttemptKey, now: float) -> None:
        """A command has changed nothing: the row is another router's."""
        self._drop("not_owner")
        taken = worker_pb2.RowEvent(key=key, kind=_Kind.KIND_TAKEN)
        session.send(worker_pb2.SessionResponse(rows=[taken]), now)

    def _retarget(self, session: Session, command: worker_pb2.Retarget, now: float) -> None:
        attempt = AttemptId.of(command.key)
        following = AttemptId(attempt.submission_id, command.next_attempt)
        if any(self._is_taken(session, command.key, a, now) for a in (attempt, following)):
            return
        if self._registry.has_followed(attempt, following, command.decode.epoch):
            self._repeat_retargeted(session, command, following, now)
            return
        prefill = self._roles.prefill
        if not command.next_row:
            self._drop("malformed")
        elif prefill is not None and self._registry.can_follow(attempt, following):
            stays = command.decode.epoch == self._context.epoch
            if not stays:
                self._peers.connect(command.decode)
            roles = (_PREFILL, _DECODE) if stays else (_PREFILL,)
            row = command.next_row
            successor = self._registry.successor(attempt, following, command.decode, roles, row=row)
            if prefill.retarget(attempt, command, successor, now):
                self._registry.follow(successor)
                return
        gone = worker_pb2.RowEvent(key=command.key, kind=_Kind.KIND_GONE)
        session.send(worker_pb2.SessionResponse(rows=[gone]), now)

    def _repeat_retargeted(
        self, session: Session, command: worker_pb2.Retarget, following: AttemptId, now: float
    ) -> None:
        """Repeat an answer that was lost with a stream. The session that asks becomes the
        listener."""
        missed = self._registry.attach(following, 0, session)
        missed.rows.insert(
            0,
            row_event(AttemptId.of(command.key), _Kind.KIND_RETARGETED, _PREFILL),
        )
        session.send(missed, now)

    def _judge(self, epoch: int, now: float, *, asks: Owner | None) -> None:
        if self._roles.decode is not None:
            self._roles.decode.judge(epoch, now, asks=asks)

    def _drop(self, reason: str) -> None:
        self._context.dropped[reason] += 1


def _refusal(assign: worker_pb2.Assign, reason: Refusal, message: str = "") -> worker_pb2.RowEvent:
    role = assign.roles[0] if assign.roles else worker_pb2.ROLE_UNSPECIFIED
    return worker_pb2.RowEvent(
        key=assign.key, kind=_Kind.KIND_REFUSED, role=role, reason=reason, message=message
    )
