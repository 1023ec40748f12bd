"""The prefill role: reads prompts in chunks, samples the first token, hands the row over.

    ASSIGN --> queue --- all prompt pages taken ---> started --- last chunk ---> held --> COMMIT
                 |              RESERVE goes out        |   |                     | |
                 |                                      |   `----- adopted here --' |
                 `--> cancelled                         `--> failed, finished       `--> dead,
                                                                                         cancelled
    chunk:      |---- 1 ----|---- 2 ----|-- 3 --|
    full pages: |--|--|--|--|--|--|--|--|--|--|-|   sent while the next chunk is computed

On a GPU, a chunk's pages are handed to the transfer as soon as its step is submitted: the copies
wait on the device, and begin when the step has written the pages, without help of this process. If
the row then fails, its pages are useless, and the sender never sends DONE.

A row starts only when all pages of its prompt are available, so every started row can finish; a
smaller row never overtakes the head of the queue. Pages enter the prefix index when the whole
prompt is computed without an error: never those of a failed row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from twolane.engine.step import Mark, RowResult, RowWork, SampledToken
from twolane.kvtransfer import reasons
from twolane.kvtransfer.events import Committed, Failed, Released, SenderEvent, Unplaced
from twolane.kvtransfer.key import Key
from twolane.prefill_worker.batching import Patience, Waiting, share_out, who_starts
from twolane.prefill_worker.config import PrefillConfig
from twolane.prefill_worker.learnt_batching import LearntBatching
from twolane.prefill_worker.outgoing import Outgoing
from twolane.prefill_worker.starting import try_start
from twolane.prefill_worker.ungranted import Ungranted
from twolane.refusals import Refusal
from twolane.v1 import worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.attempts.attempt_log import AttemptLog
from twolane.worker.context import WorkerContext
from twolane.worker.errors import RowRefusedError
from twolane.worker.event_outbox import row_event
from twolane.worker.finish import GOES_ON
from twolane.worker.role import Adopter
from twolane.worker.rows import Row, RowState, by_turn

_Kind = worker_pb2.RowEvent


class PrefillRole:
    """Implements `twolane.worker.role.PrefillSide`.

    `adopter`: the decode role of the same worker, if it has one.
    """

    def __init__(
        self,
        context: WorkerContext,
        config: PrefillConfig | None = None,
        *,
        adopter: Adopter | None = None,
    ) -> None:
        self._context = context
        self._config = config = config or PrefillConfig()
        self._adopter = adopter
        self._n_others = context.limits.decode_rows if adopter else 1  # rows of decode, or a check
        self._rows: dict[AttemptId, Row] = {}  # WAITING, COMPUTING and HELD
        self._final_events: dict[Key, worker_pb2.RowEvent] = {}  # final events, sent later
        self._planned: deque[list[tuple[Row, int]]] = deque()  # of steps in flight
        self._unsubmitted: deque[list[tuple[Row, int]]] = deque()  # not submitted: row, end
        self._events: list[SenderEvent] = []
        self._look_again_s: float | None = None
        self.lease = config.sender.lease
        batching = config.batching
        self._learnt = LearntBatching(batching) if batching.window_s is None else None
        self._fixed = Patience(batching.window_s or 0.0, above_rows=batching.watermark_rows)
        self._out = Outgoing(context, config)
        self.sender = self._out.sender
        self._ungranted = Ungranted(
            context, config, lambda row: self.sender.is_granted(self._out.key(row))
        )

    # -- commands ---------------------------------------------------------------------------

    def accept(self, row: Row, now: float) -> None:
        """Queue the row."""
        n_waiting = len(self._in_state(RowState.WAITING))
        if n_waiting >= self._config.queue_limit:
            raise RowRefusedError(Refusal.QUEUE_FULL, f"{n_waiting} rows wait here")
        if self._is_local(row):
            if self._adopter is None:
                raise RowRefusedError(Refusal.NO_ROLE, "no decode role here to hand the row to")
            self._adopter.check_fits(row)
        self._rows[row.attempt] = row
        if self._learnt is not None:
            self._learnt.arrived(now)

    def cancel(self, attempt: AttemptId, now: float) -> bool:
        row = self._rows.get(attempt)
        if row is not None:
            self._give_up(row, _Kind.KIND_FINISHED, reasons.CANCELLED, now)
        return row is not None

    def retarget(
        self, attempt: AttemptId, command: worker_pb2.Retarget, log: AttemptLog, now: float
    ) -> bool:
        row = self._rows.get(attempt)
        if row is None or self._is_local(row):
            return False
        following = AttemptId(attempt.submission_id, command.next_attempt)
        if command.decode.epoch == self._context.epoch:
            is_moved = self._try_decode_here(row, following, command.decode, now)
        else:
            is_moved = self._out.retarget(row, following, command.decode, now)
        if not is_moved:
            return False
        row.tell(log)
        del self._rows[attempt]
        self._rows[following] = row
        self._ungranted.forget(attempt)
        self._context.outbox.row(attempt, _Kind.KIND_RETARGETED, worker_pb2.ROLE_PREFILL)
        if row.state is RowState.HELD and self._is_local(row):
            self._adopt(row, now)
        return True

    def _try_decode_here(
        self, row: Row, following: AttemptId, here: worker_pb2.WorkerAddress, now: float
    ) -> bool:
        """Decode a started row here as attempt `following`, instead of sending it away.

        False, and no change, if this worker has no decode role, or no room.
        """
        if self._adopter is None or row.state not in (RowState.COMPUTING, RowState.HELD):
            return False
        if not self._adopter.try_promise(row, 0):
            return False
        self._out.abandon(row, reasons.RETARGETED, now)
        row.attempt, row.decode = following, here
        row.assign.roles.append(worker_pb2.ROLE_DECODE)
        return True

    # -- transfers --------------------------------------------------------------------------

    def on_transfers(self, events: Sequence[SenderEvent]) -> None:
        """Events of the sender; they take effect at the next `tick`."""
        self._events += events

    def tick(self, now: float) -> None:
        events, self._events = self._events, []
        for event in events:
            if isinstance(event, Released):
                if (final_event := self._final_events.pop(event.key, None)) is not None:
                    self._context.outbox.event(final_event)
                continue
            row = self._rows.get(AttemptId(event.key.submission_id, event.key.attempt))
            if row is None or self._out.key(row) != event.key:
                continue  # cancelled or retargeted meanwhile
            match event:
                case Committed():
                    row.times.committed_s = event.at_s  # `now`: a step may have run meanwhile
                    self._end(row, _Kind.KIND_HANDED_OVER, moved=event)
                case Unplaced():
                    self._ungranted.report(row, event.reason)
                case Failed():
                    self._end(row, _Kind.KIND_DEAD, reason=event.reason)
        drop = self._ungranted.look(lambda: self._in_state(RowState.HELD), now)
        if drop is not None and self._adopter is not None and self._adopter.lacks_pages:
            self._give_up(drop, _Kind.KIND_DEAD, reasons.HELD, now)

    # -- steps ------------------------------------------------------------------------------

    def plan(self, n_tokens: int, now: float) -> list[RowWork]:
        queue = self._in_state(RowState.WAITING)
        started = self._in_state(RowState.COMPUTING)
        start = who_starts(
            [Waiting(row.times.arrived_s, row.n_plannable) for row in queue],
            budget_tokens=n_tokens - sum(row.n_plannable for row in started),
            n_started=len(started),
            now=now,
            patience=self._learnt.patience if self._learnt else self._fixed,
        )
        self._look_again_s = start.look_again_s
        for row in queue[: start.n_rows]:
            if not self._try_start(row, now):
                break
        started = [row for row in self._in_state(RowState.COMPUTING) if row.n_unplanned]
        started = started[: self._context.spec.max_step_rows - self._n_others]
        shares = share_out([row.n_plannable for row in started], n_tokens)
        planned = [(row, n) for row, n in zip(started, shares, strict=True) if n]
        work = [row.work(n) for row, n in planned]
        if planned:
            self._planned.append(planned)
            self._unsubmitted.append(
                [(row, row.n_computed + row.n_ahead + n) for row, n in planned]
            )
        for row, n in planned:
            row.n_ahead += n
        if planned and self._learnt is not None:
            has_all = n_tokens == self._context.limits.step_tokens  # no decode rows in this step
            is_alone = has_all and not any(row.replays for row, _ in planned)
            self._learnt.planned(sum(n for _, n in planned), now, is_alone=is_alone)
        return work

    def on_submitted(self, work: Sequence[RowWork], mark: Mark | None, now: float) -> None:
        numbers = {share.row for share in work}
        if not self._unsubmitted or self._unsubmitted[0][0][0].number not in numbers:
            return  # no row of this role is in that step
        shares = self._unsubmitted.popleft()
        if mark is None:
            return
        for row, end in shares:
            if row.state is RowState.COMPUTING and not self._is_local(row):
                self._out.offer(row, end, now, after=mark)

    def _try_start(self, row: Row, now: float) -> bool:
        """Start the row, and its transfer, or change nothing.

        The holding cap is checked before a row starts, and not against the row's size. A row larger
        than the cap also starts while less than the cap is held; then no other row that is sent
        away starts until it is handed over. Otherwise such a row could never start, although the
        pool has room for it.
        """
        is_local = self._is_local(row)
        if not is_local and self.sender.is_full:
            return False
        if not try_start(row, self._context, self._adopter if is_local else None, now):
            return False
        if self._learnt is not None:
            self._learnt.started(row.n_uncomputed)
        if not is_local:
            self._out.start(row, now)
        return True

    def apply(self, results: Mapping[int, RowResult], now: float) -> None:
        if not self._planned or self._planned[0][0][0].number not in results:
            return  # no row of this role was in that step
        if self._learnt is not None:
            self._learnt.done(now)
        for row, n_new in self._planned.popleft():
            result = results[row.number]
            row.n_ahead -= n_new
            if row.state is not RowState.COMPUTING:
                continue  # it ended while this step was in flight
            if result.error:
                self._give_up(row, _Kind.KIND_FAILED, "engine", now, message=result.error)
                continue
            row.n_computed += n_new
            row.check()
            if not self._is_local(row):
                self._out.offer(row, row.n_computed, now)
            if not row.n_uncomputed:
                self._hand_over(row, result.tokens[0], now)

    def _hand_over(self, row: Row, first: SampledToken, now: float) -> None:
        """The prompt is computed: report the first token, and pass the row on unless it ends
        here."""
        row.publish(row.n_input, self._context.pages)
        finish = row.append(first.token)
        row.first = first
        row.times.first_token_s = now
        row.log.first_token(worker_pb2.ROLE_PREFILL, row.next_index - 1, first, finish)
        if finish != GOES_ON:
            self._give_up(row, _Kind.KIND_FINISHED, reasons.FINISH, now)
        elif self._is_local(row):
            self._adopt(row, now)
        else:
            self._out.finish(row, first, now)
            row.advance(RowState.HELD)

    def _adopt(self, row: Row, now: float) -> None:
        """Pass the row to the decode role of this worker."""
        assert self._adopter is not None
        assert row.first is not None
        del self._rows[row.attempt]
        row.times.committed_s = now
        self._context.outbox.event(self._describe(row, _Kind.KIND_HANDED_OVER))
        self._adopter.adopt(row, row.first, now)

    # -- endings ----------------------------------------------------------------------------

    def _give_up(
        self,
        row: Row,
        kind: worker_pb2.RowEvent.Kind,
        reason: str,
        now: float,
        *,
        message: str = "",
    ) -> None:
        """End the row and its transfer. FINISHED is reported only when its pages are back."""
        has_transfer = row.state is not RowState.WAITING and not self._is_local(row)
        if has_transfer:
            self._out.abandon(row, reason, now)
        if has_transfer and kind == _Kind.KIND_FINISHED:
            self._final_events[self._out.key(row)] = self._describe(row, kind, reason)
            self._drop(row)
        else:
            self._end(row, kind, reason=reason, message=message)

    def _end(
        self,
        row: Row,
        kind: worker_pb2.RowEvent.Kind,
        *,
        reason: str = "",
        message: str = "",
        moved: Committed | None = None,
    ) -> None:
        """The row has ended here: report it, and drop what is held for it."""
        final_event = self._describe(row, kind, reason, message)
        if moved is not None:
            final_event.figures.transfer_pages = moved.n_pages
            final_event.figures.transfer_bytes = moved.n_bytes
        self._context.outbox.event(final_event)
        self._drop(row)

    def _drop(self, row: Row) -> None:
        """Forget the row. The sender keeps pages pinned for as long as they are being sent."""
        del self._rows[row.attempt]
        self._ungranted.forget(row.attempt)
        row.advance(RowState.OVER)
        self._context.reserve.forget(row)
        self._context.returns.give_back(row.pages)

    def _describe(
        self, row: Row, kind: worker_pb2.RowEvent.Kind, reason: str = "", message: str = ""
    ) -> worker_pb2.RowEvent:
        figures = row.times.prefill_figures()
        figures.cached_tokens = row.n_cached
        return row_event(
            row.attempt,
            kind,
            worker_pb2.ROLE_PREFILL,
            reason=reason,
            message=message,
            figures=figures,
        )

    # -- looking in -------------------------------------------------------------------------

    def _in_state(self, state: RowState) -> list[Row]:
        """In order of turn."""
        return by_turn([row for row in self._rows.values() if row.state is state])

    def _is_local(self, row: Row) -> bool:
        """Whether this worker has both roles of the attempt."""
        return worker_pb2.ROLE_DECODE in row.assign.roles

    @property
    def wake_at_s(self) -> float | None:
        return self._look_again_s

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def sends_to(self, epoch: int) -> bool:
        return any(
            row.decode.epoch == epoch and not self._is_local(row) for row in self._rows.values()
        )

    def report(self, load: worker_pb2.LoadReport, now: float) -> None:
        waiting = self._in_state(RowState.WAITING)
        load.prefill_queue = len(waiting)
        oldest = min((row.times.arrived_s for row in waiting), default=now)
        load.oldest_wait_s = round(now - oldest, 1)
        load.unplaced = self._ungranted.n_reported
        to_compute = waiting + self._in_state(RowState.COMPUTING)
        load.prefill_queue_tokens = sum(row.n_uncomputed for row in to_compute)
