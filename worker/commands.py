"""What each command of a router does.

What may free pages that a running step reads waits for the step's end (`StepLoop.submit`); all else
is done at once. A command that is late, doubled or meant for another incarnation is dropped and
counted by reason.
"""

from __future__ import annotations

from kvtransfer.key import Key
from twolane.v1 import worker_pb2
from worker.assigns import check_assign
from worker.attempt_id import AttemptId
from worker.errors import RowRefusedError
from worker.news import row_event
from worker.peers import Peers
from worker.registry import Registry
from worker.role import Roles
from worker.rows import Row
from worker.session import Session
from worker.site import Site
from worker.step_loop import StepLoop

_Kind = worker_pb2.RowEvent
_PREFILL, _DECODE = worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE


class Commands:
    """Implements `worker.sessions.CommandHandler`. `is_draining` is theirs to set."""

    def __init__(
        self, site: Site, roles: Roles, registry: Registry, steps: StepLoop, peers: Peers
    ) -> None:
        self._site = site
        self._roles = roles
        self._registry = registry
        self._steps = steps
        self._peers = peers
        self.is_draining = False

    def handle(self, session: Session, request: worker_pb2.SessionRequest, now: float) -> None:
        match request.WhichOneof("command"):
            case "assign":
                self._assign(session, request.assign, now)
            case "cancel":
                self.cancel(AttemptId.of(request.cancel.key), now)
            case "retarget":
                self._retarget(session, request.retarget, now)
            case "attach":
                attach = request.attach
                missed = self._registry.attach(AttemptId.of(attach.key), attach.from_index, session)
                session.send(missed, now)
            case "judge_peer":
                self._judge(request.judge_peer.epoch, now)
            case "peer_gone":
                self._judge(request.peer_gone.epoch, now)
                if self._roles.decode is not None:
                    self._roles.decode.receiver.peer_gone(request.peer_gone.epoch, now)
            case "drain":
                self.is_draining = request.drain.enabled
            case "heartbeat":
                pass
            case "open":
                self._drop("duplicate_open")
            case _:
                self._drop("malformed")
        self._peers.flush(now)
        self._steps.wake()

    def cancel(self, attempt: AttemptId, now: float) -> None:
        """Stop the attempt after the running step; nothing of it is let in any more."""
        self._registry.cancel(attempt, now)

        def stop(then: float) -> None:
            for role in self._roles.all:
                role.cancel(attempt, then)

        self._steps.submit(stop)

    # -- assign -----------------------------------------------------------------------------

    def _assign(self, session: Session, assign: worker_pb2.Assign, now: float) -> None:
        attempt = AttemptId.of(assign.key)
        if not self._is_meant(assign):
            self._drop("epoch")
            return
        left_s = assign.time_left_ms / 1000
        late = self._registry.assign(
            attempt, assign.roles, session, deadline_s=now + left_s if left_s > 0 else None
        )
        if late:
            self._drop(late)
            if late == "tombstone":
                self._refuse_pages(assign, now)
            return
        try:
            self._start(assign, now)
        except RowRefusedError as refusal:
            self._refuse_pages(assign, now)
            self._site.news.row(
                attempt,
                _Kind.KIND_REFUSED,
                assign.roles[0] if assign.roles else worker_pb2.ROLE_UNSPECIFIED,
                reason=refusal.reason,
                message=refusal.message,
            )

    def _start(self, assign: worker_pb2.Assign, now: float) -> None:
        if self.is_draining:
            raise RowRefusedError("draining", "this worker takes no new rows")
        params = check_assign(assign, self._site.spec)
        role = self._roles.prefill if _PREFILL in assign.roles else self._roles.decode
        wanted = {_PREFILL: self._roles.prefill, _DECODE: self._roles.decode}
        if role is None or any(wanted.get(name) is None for name in assign.roles):
            raise RowRefusedError("no_role", "this worker does not have every role of the row")
        goes_out = _DECODE not in assign.roles
        other = assign.decode if goes_out else assign.prefill
        if len(assign.roles) == 1 and not (other.epoch and other.worker_id):
            raise RowRefusedError("invalid", "the other worker's address is missing")
        row = Row(assign, params, self._site.spec, number=self._site.next_number(), arrived_s=now)
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

    def _retarget(self, session: Session, command: worker_pb2.Retarget, now: float) -> None:
        attempt = AttemptId.of(command.key)
        following = AttemptId(attempt.submission_id, command.next_attempt)
        if self._registry.has_followed(attempt, following, command.decode.epoch):
            self._tell_retargeted(session, command, following, now)
            return
        prefill = self._roles.prefill
        if prefill is not None and self._registry.can_follow(attempt, following):
            stays = command.decode.epoch == self._site.epoch
            if not stays:
                self._peers.connect(command.decode)
            if prefill.retarget(attempt, command, now):
                roles = (_PREFILL, _DECODE) if stays else (_PREFILL,)
                self._registry.follow(attempt, following, command.decode.epoch, roles)
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
