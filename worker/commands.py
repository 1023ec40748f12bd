"""What each command of a router does.

What may free pages that a running step reads waits for the step's end (`StepLoop.submit`); all else
is done at once. Whoever assigned a row commands it: what another router says of it changes nothing.
A command that is not acted upon is counted by reason; an ASSIGN and a RETARGET are answered all the
same.
"""

from __future__ import annotations

from twolane.kvtransfer.key import Key
from twolane.refusals import Refusal
from twolane.v1 import worker_pb2
from twolane.worker.assign_check import check_assign
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.attempts.attempt_log import AttemptLog
from twolane.worker.attempts.owner import Owner
from twolane.worker.attempts.registry import Registry
from twolane.worker.context import WorkerContext
from twolane.worker.errors import RowRefusedError
from twolane.worker.event_outbox import row_event
from twolane.worker.peers.peers import Peers
from twolane.worker.role import Roles
from twolane.worker.rows import Row
from twolane.worker.sessions.session import Session
from twolane.worker.steps.step_loop import StepLoop

_Kind = worker_pb2.RowEvent
_PREFILL, _DECODE = worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE


class Commands:
    """Implements `twolane.worker.sessions.sessions.CommandHandler`. `is_stopping` is the worker's
    to set: no router undoes it."""

    def __init__(
        self, site: WorkerContext, roles: Roles, registry: Registry, steps: StepLoop, peers: Peers
    ) -> None:
        self._site = site
        self._roles = roles
        self._registry = registry
        self._steps = steps
        self._peers = peers
        self.is_stopping = False
        self._drain_wanted = False  # by the router that spoke last

    @property
    def is_draining(self) -> bool:
        """Whether new rows are refused."""
        return self.is_stopping or self._drain_wanted

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
            case "judge_peer":
                self._judge(request.judge_peer.epoch, now)
            case "peer_gone":
                self._judge(request.peer_gone.epoch, now)
                if self._roles.decode is not None:
                    self._roles.decode.receiver.peer_gone(request.peer_gone.epoch, now)
            case "drain":
                self._drain_wanted = request.drain.enabled
            case "heartbeat":
                pass
            case "open":
                self._drop("duplicate_open")
            case _:
                self._drop("malformed")
        self._peers.flush(now)
        self._steps.wake()

    def expire(self, now: float) -> None:
        """Stop what nobody listens to any more, and what is past its deadline."""
        for log in self._registry.expire(now):
            self._cancel(log.attempt, log.owner, now)

    def _cancel(self, attempt: AttemptId, owner: Owner, now: float) -> None:
        """Stop the attempt after the running step; nothing of it is let in any more."""
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
        if not self._is_meant(assign):
            self._turn_away(session, assign, Refusal.EPOCH, now)
            return
        if (log := self._registry.find(attempt)) is not None:
            if log.owner == session.owner:
                self._drop("duplicate_assign")
                session.send(self._registry.attach(attempt, 0, session), now)
            else:
                self._turn_away(session, assign, Refusal.DUPLICATE, now)
            return
        left_s = assign.time_left_ms / 1000
        deadline_s = now + left_s if left_s > 0 else None
        log = AttemptLog.of(assign, session, owner=session.owner, deadline_s=deadline_s)
        if why_not := self._registry.admit(log):
            self._turn_away(session, assign, why_not, now)
            self._refuse_pages(assign, now)
            return
        try:
            self._start(assign, log, now)
        except RowRefusedError as refusal:
            self._refuse_pages(assign, now)
            self._site.news.event(_refusal(assign, refusal.reason, refusal.message))

    def _turn_away(
        self, session: Session, assign: worker_pb2.Assign, reason: Refusal, now: float
    ) -> None:
        """Nothing is kept of it. (Of what `_start` refuses there is a log, for ATTACH.)"""
        self._drop(reason)
        session.send(worker_pb2.SessionResponse(rows=[_refusal(assign, reason)]), now)

    def _start(self, assign: worker_pb2.Assign, log: AttemptLog, now: float) -> None:
        if self.is_draining:
            raise RowRefusedError(Refusal.DRAINING, "this worker takes no new rows")
        params = check_assign(assign, self._site.spec)
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
        number = self._site.next_number()
        row = Row(assign, params, self._site.spec, number=number, arrived_s=now, log=log)
        role.accept(row, now)
        if goes_out:
            self._peers.connect(assign.decode)

    def _is_meant(self, assign: worker_pb2.Assign) -> bool:
        """Whether the roles that are named here are asked of this incarnation."""
        addresses = {_PREFILL: assign.prefill, _DECODE: assign.decode}
        epochs = {addresses[name].epoch for name in assign.roles if name in addresses}
        return epochs <= {0, self._site.epoch}

    def _refuse_pages(self, assign: worker_pb2.Assign, now: float) -> None:
        """Let the prefill worker know soon that its RESERVE is in vain."""
        if self._roles.decode is not None and list(assign.roles) == [_DECODE]:
            key = Key(*AttemptId.of(assign.key), assign.prefill.epoch, self._site.epoch)
            self._roles.decode.receiver.cancel(key, now)

    # -- others -----------------------------------------------------------------------------

    def _attach(self, session: Session, command: worker_pb2.Attach, now: float) -> None:
        attempt = AttemptId.of(command.key)
        if not self._is_taken(session, command.key, attempt, now):
            session.send(self._registry.attach(attempt, command.from_index, session), now)

    def _is_taken(
        self, session: Session, key: worker_pb2.AttemptKey, attempt: AttemptId, now: float
    ) -> bool:
        """Whether the row is another router's; then this one has been told so, of `key`."""
        log = self._registry.find(attempt)
        if log is None or log.owner == session.owner:  # guard: owner
            return False
        self._drop("not_owner")
        taken = worker_pb2.RowEvent(key=key, kind=_Kind.KIND_TAKEN)
        session.send(worker_pb2.SessionResponse(rows=[taken]), now)
        return True

    def _retarget(self, session: Session, command: worker_pb2.Retarget, now: float) -> None:
        attempt = AttemptId.of(command.key)
        following = AttemptId(attempt.submission_id, command.next_attempt)
        if any(self._is_taken(session, command.key, a, now) for a in (attempt, following)):
            return
        if self._registry.has_followed(attempt, following, command.decode.epoch):
            self._tell_retargeted(session, command, following, now)
            return
        prefill = self._roles.prefill
        if not command.next_row:
            self._drop("malformed")
        elif prefill is not None and self._registry.can_follow(attempt, following):
            stays = command.decode.epoch == self._site.epoch
            if not stays:
                self._peers.connect(command.decode)
            roles = (_PREFILL, _DECODE) if stays else (_PREFILL,)
            epoch, row = command.decode.epoch, command.next_row
            heir = self._registry.heir(attempt, following, epoch, roles, row=row)
            if prefill.retarget(attempt, command, heir, now):
                self._registry.follow(heir)
                return
        gone = worker_pb2.RowEvent(key=command.key, kind=_Kind.KIND_GONE)
        session.send(worker_pb2.SessionResponse(rows=[gone]), now)

    def _tell_retargeted(
        self, session: Session, command: worker_pb2.Retarget, following: AttemptId, now: float
    ) -> None:
        """The answer got lost with a stream. Whoever asks again hears the row from now on."""
        missed = self._registry.attach(following, 0, session)
        missed.rows.insert(
            0,
            row_event(AttemptId.of(command.key), _Kind.KIND_RETARGETED, _PREFILL),
        )
        session.send(missed, now)

    def _judge(self, epoch: int, now: float) -> None:
        if self._roles.decode is not None:
            self._roles.decode.judge(epoch, now)

    def _drop(self, reason: str) -> None:
        self._site.dropped[reason] += 1


def _refusal(assign: worker_pb2.Assign, reason: Refusal, message: str = "") -> worker_pb2.RowEvent:
    role = assign.roles[0] if assign.roles else worker_pb2.ROLE_UNSPECIFIED
    return worker_pb2.RowEvent(
        key=assign.key, kind=_Kind.KIND_REFUSED, role=role, reason=reason, message=message
    )
