"""The decode role: continuous batching. Rows join and leave between steps, one token each a step.

    ASSIGN --> waiting --- RESERVE, grant, pages landed ---> running --> finished
                  |                     adopted from prefill --^  |
                  `--> cancelled, dead                            `--> preempted, failed, cancelled

Growth: a grant promises pages for the growth that ASSIGN asks for. A running row takes pages from
its promise, then spare ones; if there are none, the row that is last in order of turn is preempted.

Pages of the prompt enter the prefix index when they have landed and are verified, pages of the
answer when the row ends without a failure; pages that a failed row wrote never do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from twolane.decode_worker.config import DecodeConfig
from twolane.decode_worker.preemption import choose_victim
from twolane.engine.step import Page, RowResult, RowWork, SampledToken
from twolane.kvtransfer import reasons
from twolane.kvtransfer.events import Abandoned, Dead, Landed, ReceiverEvent
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.receive.receiver import Receiver
from twolane.refusals import Refusal
from twolane.v1 import sampling_pb2, worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.attempts.owner import Owner
from twolane.worker.context import WorkerContext
from twolane.worker.errors import RowRefusedError
from twolane.worker.finish import GOES_ON
from twolane.worker.rows import Row, RowState, by_turn

_Kind = worker_pb2.RowEvent
_DECODE = worker_pb2.ROLE_DECODE


class DecodeRole:
    """Implements `twolane.worker.role.DecodeSide` and `twolane.worker.role.Adopter`."""

    def __init__(self, context: WorkerContext, config: DecodeConfig | None = None) -> None:
        self._context = context
        self._config = config or DecodeConfig()
        self._waiting: dict[AttemptId, Row] = {}
        self._running: dict[AttemptId, Row] = {}
        self._order: tuple[Row, ...] | None = None  # running rows in order of turn
        self._unstarted: set[Row] = set()  # running rows that were in no step yet
        self._applied_s = 0.0  # when the running rows got their newest tokens
        self._planned: deque[list[Row]] = deque()  # of steps in flight
        self._events: list[ReceiverEvent] = []
        self.lease = self._config.receiver.lease
        self.receiver = Receiver(
            context.epoch,
            context.pages,
            page_tokens=context.spec.page_tokens,
            page_bytes=context.spec.page_bytes,
            may_grant=self._may_grant,
            on_revoked=self._on_revoked,
            config=self._config.receiver,
        )

    # -- commands ---------------------------------------------------------------------------

    def accept(self, row: Row, now: float) -> None:
        """Expect the row's pages from its prefill worker."""
        self.check_fits(row)
        if not self.receiver.expect(
            self._key(row), n_tokens=row.n_input, now=now, prefix_hashes=row.prompt_hashes
        ):
            raise RowRefusedError(
                Refusal.CANCELLED, "its transfer was given up before it was assigned"
            )
        self._waiting[row.attempt] = row

    def cancel(self, attempt: AttemptId, now: float) -> bool:
        row = self._running.get(attempt) or self._waiting.get(attempt)
        if row is None:
            return False
        if row.state is RowState.WAITING:
            self.receiver.cancel(self._key(row), now)
        self._end(row, _Kind.KIND_FINISHED, reason=reasons.CANCELLED)
        return True

    def judge(self, epoch: int, now: float, *, asks: Owner | None) -> None:
        """Report verdicts on the rows fed by prefill worker `epoch`. Running rows have landed. What
        one router suspects ends no row of another's."""

        def concerns(key: Key) -> bool:
            row = self._waiting.get(AttemptId(key.submission_id, key.attempt))
            owner = None if row is None else row.log.owner
            return asks in (None, owner)  # guard: own suspicion

        for row in self._running.values():
            if row.assign.prefill.epoch == epoch and asks in (None, row.log.owner):
                self._tell(row, _Kind.KIND_LANDED)
        for verdict in self.receiver.judge(epoch, now, concerns):
            waiting = self._waiting.get(AttemptId(verdict.key.submission_id, verdict.key.attempt))
            if waiting is None:
                continue
            if verdict.landed:
                self._tell(waiting, _Kind.KIND_LANDED)
            else:
                self._end(waiting, _Kind.KIND_DEAD, reason=reasons.JUDGED)

    # -- transfers --------------------------------------------------------------------------

    def on_transfers(self, events: Sequence[ReceiverEvent]) -> None:
        """Events of the receiver; they take effect at the next `tick`."""
        self._events += events

    def tick(self, now: float) -> None:
        events, self._events = self._events, []
        for event in events:
            row = self._waiting.get(AttemptId(event.key.submission_id, event.key.attempt))
            if row is None or self._key(row) != event.key:
                continue  # cancelled meanwhile, at the receiver too
            match event:
                case Landed():
                    self._join(row, event, now)
                case Dead():
                    self._end(row, _Kind.KIND_DEAD, reason=event.reason)
                case Abandoned(reason=reasons.FINISH):
                    self._end(row, _Kind.KIND_FINISHED, reason=reasons.FINISH)
                case Abandoned():
                    self._end(row, _Kind.KIND_DEAD, reason=event.reason)

    def _may_grant(self, key: Key, n_pages: int) -> bool:
        """The receiver's grant policy: room in the batch, and spare pages for prompt and growth."""
        row = self._waiting.get(AttemptId(key.submission_id, key.attempt))
        return row is not None and self.try_promise(row, n_pages)

    def _on_revoked(self, key: Key) -> None:
        """The row waits again; its promise must not keep others out of the batch meanwhile."""
        row = self._waiting.get(AttemptId(key.submission_id, key.attempt))
        if row is not None:
            self._context.reserve.forget(row)

    def _join(self, row: Row, landed: Landed, now: float) -> None:
        pages = self.receiver.try_commit(landed.key, now)
        if pages is None:
            return  # abandoned while a step ran: the next event ends the row
        row.pages = [Page(page) for page in pages]
        row.n_computed = row.n_input
        row.n_cached = landed.skip_pages * self._context.spec.page_tokens
        row.times.landed_s = now
        del self._waiting[row.attempt]
        first = SampledToken(landed.first.token, landed.first.logprob, landed.first.top)
        finish = row.append(first.token)
        self._run(row, first, finish, now)
        if finish != GOES_ON:  # rare: the prefill role usually keeps such a row
            self._end(row, _Kind.KIND_FINISHED)

    # -- adopting (twolane.worker.role.Adopter) ---------------------------------------------

    def check_fits(self, row: Row) -> None:
        n_most, n_pages = row.n_prompt_pages + self._growth_pages(row), self._context.spec.n_pages
        if n_most > n_pages:
            raise RowRefusedError(
                Refusal.TOO_LARGE, f"grows to {n_most} pages; the pool has {n_pages}"
            )

    def try_promise(self, row: Row, n_new_pages: int) -> bool:
        if not self._has_room(row, n_new_pages):
            return False
        self._context.reserve.promise(row, self._growth_pages(row))
        return True

    def adopt(self, row: Row, first: SampledToken, now: float) -> None:
        row.times.landed_s = now
        self._run(row, first, GOES_ON, now)

    @property
    def lacks_pages(self) -> bool:
        return self.receiver.n_queued > 0

    def _run(
        self, row: Row, first: SampledToken, finish: sampling_pb2.FinishReason, now: float
    ) -> None:
        """The row joins the batch: its prompt is in pages, its first token appended and reported
        again."""
        row.advance(RowState.RUNNING)
        self._running[row.attempt] = row
        self._unstarted.add(row)
        self._order = None
        row.times.last_token_s = now
        self._tell(row, _Kind.KIND_JOINED)
        row.log.first_token(_DECODE, row.next_index - 1, first, finish)

    # -- steps ------------------------------------------------------------------------------

    def plan(self, n_tokens: int, now: float) -> list[RowWork]:
        assert n_tokens >= len(self._running), "more rows than the step has room for"
        planned: list[Row] = []
        work: list[RowWork] = []
        page_tokens, running = self._context.spec.page_tokens, RowState.RUNNING
        for row in self._in_turn():
            if not row.may_go_on:
                continue  # its last token is being sampled, and needs no page
            has_room = len(row.token_ids) + row.n_ahead <= len(row.pages) * page_tokens
            # it may have been preempted during this plan
            is_ready = row.state is running if has_room else self._grow(row)
            if is_ready:
                planned.append(row)
                work.append(row.work(1))
                row.n_ahead += 1
                if self._unstarted and row in self._unstarted:
                    self._unstarted.remove(row)
                    row.times.joined_s = now
        if planned:
            self._planned.append(planned)
        return work

    def apply(self, results: Mapping[int, RowResult], now: float) -> None:
        if not self._planned or self._planned[0][0].number not in results:
            return  # no row of this role was in that step
        running, self._applied_s = RowState.RUNNING, now
        for row in self._planned.popleft():
            result = results[row.number]
            row.n_ahead -= 1
            if row.state is not running:
                continue  # it ended while this step was in flight
            if result.error:
                self._end(row, _Kind.KIND_FAILED, reason="engine", message=result.error)
                continue
            for sampled in result.tokens:  # up to the one that ends the answer
                finish = row.take(sampled.token)
                row.log.token(_DECODE, row.n_computed - row.n_prompt, sampled, finish)
                if finish:
                    self._end(row, _Kind.KIND_FINISHED)
                    break

    def _in_turn(self) -> Sequence[Row]:
        """Running rows in order of turn. Sorted again only after a row came or left."""
        if self._order is None:
            self._order = tuple(by_turn(self._running.values()))
        return self._order

    def _grow(self, row: Row) -> bool:
        """Take pages for the row's next position.

        False if there are none until the step in flight is done, or if the row itself was
        preempted.
        """
        n_tokens = len(row.token_ids) + row.n_ahead
        n_missing = row.pages_for(n_tokens) - len(row.pages)
        while row.state is RowState.RUNNING:
            if self._context.reserve.try_grow(row, n_missing):
                return True
            if self._context.returns.is_waiting:
                return False  # some come free when the step in flight is done
            victim = choose_victim(self._running.values())
            self._end(victim, _Kind.KIND_PREEMPTED, reason="pages")
        return False

    # -- inside -----------------------------------------------------------------------------

    def _has_room(self, row: Row, n_new_pages: int) -> bool:
        """In the batch and in the pool. Its own earlier promise, which is replaced, takes none."""
        reserve = self._context.reserve
        n_others = len(reserve.holders) - (row.number in reserve.holders)
        if n_others >= self._context.limits.decode_rows:
            return False
        return n_new_pages + self._growth_pages(row) <= reserve.n_spare_for(row)

    def _growth_pages(self, row: Row) -> int:
        wanted = max(row.assign.growth_tokens, self._config.least_growth_tokens)
        return row.growth_pages_for(wanted)

    def _key(self, row: Row) -> Key:
        return Key(*row.attempt, row.assign.prefill.epoch, self._context.epoch)

    def _tell(self, row: Row, kind: worker_pb2.RowEvent.Kind) -> None:
        self._context.outbox.row(row.attempt, kind, _DECODE)

    def _end(
        self,
        row: Row,
        kind: worker_pb2.RowEvent.Kind,
        *,
        reason: str = "",
        message: str = "",
    ) -> None:
        """The row has ended here: return its pages and its promise, and report the final event."""
        self._waiting.pop(row.attempt, None)
        if self._running.pop(row.attempt, None) is not None:
            self._unstarted.discard(row)
            self._order = None
        is_sound = kind != _Kind.KIND_FAILED and row.n_computed > row.n_input
        if is_sound and self._config.index_answers:
            row.publish(row.n_computed, self._context.pages)
        if row.times.joined_s is not None and row.n_computed > row.n_input:
            row.times.last_token_s = self._applied_s
        row.advance(RowState.OVER)
        self._context.reserve.forget(row)
        self._context.returns.give_back(row.pages)
        self._context.outbox.row(
            row.attempt,
            kind,
            _DECODE,
            reason=reason,
            message=message,
            figures=row.times.decode_figures(),
        )

    # -- looking in -------------------------------------------------------------------------

    @property
    def wake_at_s(self) -> float | None:
        return None  # a running row is in every step; the others wait for a transfer event

    @property
    def rows(self) -> list[Row]:
        return [*self._waiting.values(), *self._running.values()]

    def report(self, load: worker_pb2.LoadReport, now: float) -> None:
        load.rows = len(self._running)
        load.decode_queue = self.receiver.n_queued
        holders = self._context.reserve.holders
        ungranted = [row for row in self._waiting.values() if row.number not in holders]
        load.expected_rows = len(self._waiting)
        load.expected_pages = sum(row.n_prompt_pages + self._growth_pages(row) for row in ungranted)
        load.reserved_growth_pages = self._context.reserve.n_promised
        load.fence_wanted.extend(self.receiver.fence_wanted(now))
