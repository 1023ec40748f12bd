"""What the parts of the dispatcher share: the tables, the outbox, the counters. Decides nothing.

A request is in `requests` by its submission id and in `labels` from admission to its end, in
`states` by its state, in `queue` while it waits, under the epochs of its live attempt in `_at`, and
in `rows` under the numbers that workers tell its tokens by.
Nothing of it stays afterwards, not even its prompt, which a client that reads slowly would keep.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

from twolane.router.config import RouterConfig
from twolane.router.dispatch import commands
from twolane.router.dispatch.forecast import Forecast
from twolane.router.dispatch.load_tally import Tally
from twolane.router.dispatch.queue import WaitingQueue
from twolane.router.dispatch.roster import Roster
from twolane.router.lazy_heap import LazyHeap
from twolane.router.members.member import MemberState
from twolane.router.members.membership import Membership
from twolane.router.requests.attempt import Attempt
from twolane.router.requests.request import WAITING, Label, Request, RequestState
from twolane.router.store import LocalStore, Placement, Store
from twolane.router.tenants.accounts import Accounts, no_limits
from twolane.security.keys import TenantLimits
from twolane.v1 import worker_pb2

CANCELS_A_MESSAGE = 1_000
OutMessage = tuple[int, worker_pb2.SessionRequest]


class Observer(Protocol):
    """Who measures, by model: durations in seconds."""

    def admitted(self, model: str, n_prompt: int) -> None: ...

    def queued(self, model: str, duration_s: float) -> None: ...

    def first_token(self, model: str, duration_s: float) -> None: ...

    def gap(self, model: str, duration_s: float) -> None: ...

    def ended(self, model: str, outcome: str, duration_s: float) -> None:
        """`outcome` is finished, cancelled or failed; arrival to here."""
        ...


class NullObserver:
    """Nobody measures."""

    def admitted(self, model: str, n_prompt: int) -> None: ...

    def queued(self, model: str, duration_s: float) -> None: ...

    def first_token(self, model: str, duration_s: float) -> None: ...

    def gap(self, model: str, duration_s: float) -> None: ...

    def ended(self, model: str, outcome: str, duration_s: float) -> None: ...


class Board:
    """See the module's docstring."""

    def __init__(
        self,
        config: RouterConfig,
        observer: Observer,
        limits_of: Callable[[str], TenantLimits] = no_limits,
        store: Store | None = None,
    ) -> None:
        self.config = config
        self.store: Store = store or LocalStore()
        self.accounts = Accounts(limits_of, lambda: self.store.quota_parts)
        self.observer = observer
        self.members = Membership(config.membership)
        self.queue = WaitingQueue(self.accounts.weight_of)
        self.requests: dict[str, Request] = {}  # by submission id
        self.labels: dict[Label, str] = {}  # submission ids
        self.states: Counter[RequestState] = Counter()  # of `requests`
        self.counters: Counter[str] = Counter()
        self.now = 0.0  # of the latest tick; for memories that need no better
        self.tally = Tally()
        self.rows: dict[int, Request] = {}  # by number; each has its attempt
        self._row_numbers = itertools.count(1)  # never used again, so late tokens find nobody
        self.outlook = Forecast()
        self.roster = Roster(config.admission, self.members, self.tally)
        self.alarms: LazyHeap[Request] = LazyHeap()  # by when each must be looked at
        self._at: dict[int, dict[str, Request]] = {}
        self._outbox: list[OutMessage] = []
        # by epoch: the last command in the outbox, where that is a cancel
        self._unsent_cancels: dict[int, worker_pb2.SessionRequest] = {}
        self._later: deque[tuple[float, int, worker_pb2.AttemptKey]] = deque()  # cancels
        self._touched: list[Request] = []

    def send(self, epoch: int, command: worker_pb2.SessionRequest) -> None:
        """Queue a command. Without an open session it is lost."""
        member = self.members.get(epoch)
        if member is not None and member.is_open and member.state is not MemberState.GONE:
            self._outbox.append((epoch, command))
            self._unsent_cancels.pop(epoch, None)  # what follows comes behind this

    def cancel(self, epoch: int, submission_id: str, attempt: int) -> None:
        """Have a worker cancel an attempt: now, and again whenever a session to it opens."""
        member = self.members.get(epoch)
        if member is None or member.state is MemberState.GONE:
            return
        member.note_cancel(submission_id, attempt, self.now)
        if member.is_open:
            self.say_cancelled(epoch, submission_id, attempt)

    def cancel_later(self, epoch: int, key: worker_pb2.AttemptKey, due: float) -> None:
        """`cancel`, by the first `cancel_due` from then on. A worker drops it if another router
        owns the attempt by then."""
        self._later.append((due, epoch, key))

    def cancel_due(self) -> None:
        while self._later and self._later[0][0] <= self.now:
            _, epoch, key = self._later.popleft()
            self.cancel(epoch, key.submission_id, key.attempt)

    def say_cancelled(self, epoch: int, submission_id: str, attempt: int) -> None:
        """Many at once share a message: a link breaks when too many wait."""
        command = self._unsent_cancels.get(epoch)
        if command is None or len(command.cancel.keys) >= CANCELS_A_MESSAGE:
            command = commands.cancel()
            self.send(epoch, command)
            self._unsent_cancels[epoch] = command
        command.cancel.keys.add(submission_id=submission_id, attempt=attempt)

    def take_outbox(self) -> list[OutMessage]:
        taken, self._outbox = self._outbox, []
        self._unsent_cancels.clear()
        return taken

    def touch(self, request: Request) -> None:
        """There is news for the client."""
        self._touched.append(request)

    def take_touched(self) -> list[Request]:
        taken, self._touched = self._touched, []
        return taken

    def drop(self, reason: str) -> None:
        """A message is not used. Counted, never silent."""
        self.counters[f"dropped.{reason}"] += 1

    def add(self, request: Request) -> None:
        """A new request, whose label is free, to be placed when it is its turn if it waits."""
        job = request.job
        assert job.submission_id not in self.requests
        assert job.label not in self.labels
        self.requests[job.submission_id] = request
        self.labels[job.label] = job.submission_id
        self.states[request.state] += 1
        if request.state in WAITING:
            self.queue.push(request)

    def find(self, submission_id: str, tenant: str) -> Request | None:
        """A live request of that tenant. Another tenant's is as unknown as one that never was."""
        request = self.requests.get(submission_id)
        if request is None or request.job.tenant != tenant:  # guard: tenant of an id
            return None
        return request

    def alarm(self, request: Request, due: float) -> None:
        """Have it looked at then, if it is not earlier anyway."""
        before = self.alarms.rank_of(request)
        if before is None or due < before:
            self.alarms.put(request, due)

    def advance(self, request: Request, to: RequestState) -> None:
        """Every move of a request's life is made here."""
        before = request.state
        request.life.advance(to)
        self.states[before] -= 1
        self.states[to] += 1
        if before in WAITING and to not in WAITING:
            self.queue.discard(request)

    def set_attempt(self, request: Request, attempt: Attempt | None) -> None:
        """Make `attempt` the live one, or none. The old one must be over."""
        if request.attempt is not None:
            assert request.attempt.is_over
            for epoch in request.attempt.epochs():
                here = self._at[epoch]
                del here[request.job.submission_id]
                if not here:
                    del self._at[epoch]
            for row in request.attempt.rows:
                del self.rows[row]
            self.tally.remove(request.attempt)
        request.attempt = attempt
        if attempt is None:
            return
        self.tally.add(attempt)
        if len(request.answer.tokens) > attempt.first_index:
            self.tally.through(attempt)
        request.last_attempt = attempt
        request.n_attempts += 1
        at = Placement(attempt.key.attempt, attempt.prefill_epoch, attempt.decode_epoch)
        self.store.place(request.job.submission_id, at)
        self.counters["attempts"] += 1
        for epoch in attempt.epochs():
            self._at.setdefault(epoch, {})[request.job.submission_id] = request
        for row in attempt.rows:
            self.rows[row] = request

    def next_row(self) -> int:
        """A number for a new attempt."""
        return next(self._row_numbers)

    def remove(self, request: Request) -> None:
        """The request is over: take it out of every table."""
        assert request.is_over
        assert request.attempt is None
        job = request.job
        if self.requests.pop(job.submission_id, None) is not None:
            self.states[request.state] -= 1
            del self.labels[job.label]
            self._settle(request)
        self.alarms.discard(request)
        self.store.release(job.submission_id, sum(_had(request)))
        request.drop_prompt()

    def _settle(self, request: Request) -> None:
        """What it has cost its tenant is known now: nothing, if no worker had it."""
        had_worker = request.n_attempts > 0
        n_prompt, n_output = _had(request)
        account = self.accounts.of(request.job.tenant, self.now)
        account.settle(request.cost_tokens, n_prompt, n_output, self.now)
        if had_worker:
            self.queue.settle(request, n_prompt + n_output - request.cost_tokens)

    def attempts_at(self, epoch: int) -> list[tuple[Request, Attempt]]:
        """Live attempts that are known to that worker."""
        return [
            (request, request.attempt)
            for request in self._at.get(epoch, {}).values()
            if request.attempt is not None and not request.attempt.is_over
        ]

    def check_integrity(self) -> None:
        """Every table speaks of the same requests and attempts."""
        states = Counter(request.state for request in self.requests.values())
        assert +self.states == states, f"counted {+self.states}, are {states}"
        assert all(self.requests.get(r.job.submission_id) is r for r in self.queue)
        assert all(request.state in WAITING for request in self.queue)
        self.queue.check_integrity()
        tenants = Counter(request.job.tenant for request in self.requests.values())
        counted = {account.tenant: account.n_live for account in self.accounts if account.n_live}
        assert counted == tenants, f"accounts {counted}, are {tenants}"
        assert set(self.alarms) == set(self.requests.values())
        names = {request.job.label: name for name, request in self.requests.items()}
        assert self.labels == names, f"labels {self.labels}, are {names}"
        live = [request for request in self.requests.values() if request.attempt is not None]
        at = {epoch: set(here) for epoch, here in self._at.items()}
        expected: dict[int, set[str]] = {}
        for request in live:
            assert request.attempt is not None
            for epoch in request.attempt.epochs():
                expected.setdefault(epoch, set()).add(request.job.submission_id)
        assert at == expected, f"indexed {at}, are {expected}"
        rows = {row: r for r in live if r.attempt is not None for row in r.attempt.rows}
        assert self.rows == rows, f"rows {set(self.rows)}, are {set(rows)}"
        attempts = [request.attempt for request in live if request.attempt is not None]
        self.tally.check_integrity(attempt for attempt in attempts if not attempt.is_over)


def _had(request: Request) -> tuple[int, int]:
    """Tokens of prompt and answer, as its tenant pays for them."""
    return request.n_prompt if request.n_attempts else 0, len(request.answer.tokens)
