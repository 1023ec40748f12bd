"""The state that the parts of the dispatcher share: tables, outbox, counters. It makes no
decisions.

From its admission to its end, a request is in `requests` by its submission id, in `labels`, and
counted in `states`. It is in `queue` while it waits, in `_at` under the epochs of its live attempt,
and in `rows` under the row numbers with which workers send its tokens. Nothing of it stays
afterwards, not even its prompt, which a slow reader would otherwise keep in memory.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from twolane.errors import InvalidParameterError
from twolane.router.config import RouterConfig
from twolane.router.dispatch import commands
from twolane.router.dispatch.forecast import Forecast
from twolane.router.dispatch.load_tally import Tally
from twolane.router.dispatch.queue import WaitingQueue
from twolane.router.dispatch.roster import Roster
from twolane.router.lazy_heap import LazyHeap
from twolane.router.members.member import MemberState
from twolane.router.members.membership import Membership
from twolane.router.members.revisions import Revisions
from twolane.router.members.sound_numbers import check_figures
from twolane.router.requests.attempt import Attempt, AttemptState
from twolane.router.requests.ended import EndedRequests
from twolane.router.requests.journal import MOVED, PLACED, Mark
from twolane.router.requests.request import WAITING, Label, Request, RequestState
from twolane.router.store import LocalStore, Placement, Store
from twolane.router.tenants.accounts import Accounts, no_limits
from twolane.router.traffic import Traffic
from twolane.security.keys import TenantLimits
from twolane.v1 import worker_pb2

CANCELS_A_MESSAGE = 1_000
FIRST_ROUTER = "router-0"  # which prefers equal workers in the order of their names
OutMessage = tuple[int, worker_pb2.SessionRequest]


class DispatchObserver(Protocol):
    """Receives measurements, by model; durations are in seconds."""

    def admitted(self, model: str, n_prompt: int) -> None: ...

    def queued(self, model: str, duration_s: float) -> None: ...

    def first_token(self, model: str, duration_s: float) -> None: ...

    def gap(self, model: str, duration_s: float) -> None: ...

    def ended(self, model: str, outcome: str, duration_s: float) -> None:
        """`outcome` is finished, cancelled or failed; `duration_s` is counted from the arrival."""
        ...


class NullDispatchObserver:
    """Ignores all measurements."""

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
        observer: DispatchObserver,
        limits_of: Callable[[str], TenantLimits] = no_limits,
        store: Store | None = None,
    ) -> None:
        self.config = config
        self.store: Store = LocalStore() if store is None else store
        self.accounts = Accounts(limits_of, lambda: self.store.quota_parts)
        self.observer = observer
        self.members = Membership(config.membership)
        self.queue = WaitingQueue(self.accounts.weight_of)
        self.requests: dict[str, Request] = {}  # by submission id
        self.labels: dict[Label, str] = {}  # submission ids
        self.states: Counter[RequestState] = Counter()  # of `requests`
        self.ended = EndedRequests(config.ended_requests)
        self.counters: Counter[str] = Counter()
        self.now = 0.0  # of the latest tick; precise enough for timestamps of cancels
        self.tally = Tally()
        self.rows: dict[int, Request] = {}  # by row number; each request has an attempt
        self._row_numbers = itertools.count(1)  # never reused, so that late tokens find no request
        self.revisions = Revisions()
        self.outlook = Forecast()
        self.traffic = Traffic()
        self.n_expecting = 0  # requests, not admitted yet, that wait for a worker of their model
        # Whether a controller starts workers for requests that have none.
        self.wakes: Callable[[], bool] = lambda: False
        # The time to the first token that a controller has told, while it tells one.
        self.slo_ttft_s: Callable[[], float | None] = lambda: None
        salt = "" if config.router_id == FIRST_ROUTER else config.router_id
        self.roster = Roster(config.admission, self.members, self.tally, salt)
        self.roster.holds_slo = lambda: self.slo_ttft_s() is not None
        self.alarms: LazyHeap[Request] = LazyHeap()  # by the time of each request's next check
        self._at: dict[int, dict[str, Request]] = {}
        self._outbox: list[OutMessage] = []
        # By epoch: the last command in the outbox, if it is a cancel.
        self._unsent_cancels: dict[int, worker_pb2.SessionRequest] = {}
        # Cancels by the time at which they are due; of equal times the first one first.
        self._later: list[tuple[float, int, int, worker_pb2.AttemptKey]] = []
        self._n_later = itertools.count()
        self._with_news: list[Request] = []

    def configure(self, config: RouterConfig) -> None:
        """From now on this one holds."""
        self.config, self.members.config = config, config.membership
        self.roster.config = config.admission

    def send(self, epoch: int, command: worker_pb2.SessionRequest) -> None:
        """Queue a command. It is lost if no session is open."""
        member = self.members.get(epoch)
        if member is not None and member.is_open and member.state is not MemberState.GONE:
            self._outbox.append((epoch, command))
            self._unsent_cancels.pop(epoch, None)  # later cancels must come after this command

    def cancel(self, epoch: int, submission_id: str, attempt: int) -> None:
        """Tell a worker to cancel an attempt, now and whenever a session to it opens."""
        member = self.members.get(epoch)
        if member is None or member.state is MemberState.GONE:
            return
        member.note_cancel(submission_id, attempt, self.now)
        if member.is_open:
            self.say_cancelled(epoch, submission_id, attempt)

    def cancel_later(self, epoch: int, key: worker_pb2.AttemptKey, due: float) -> None:
        """As `cancel`, but in the first `cancel_due` after `due`. The worker ignores it if another
        router owns the attempt by then."""
        heapq.heappush(self._later, (due, next(self._n_later), epoch, key))

    def cancel_due(self) -> None:
        while self._later and self._later[0][0] <= self.now:
            _, _, epoch, key = heapq.heappop(self._later)
            again = self.requests.get(key.submission_id)  # its client may have resumed it here
            if again is None or not _knows(again, epoch, key):
                self.cancel(epoch, key.submission_id, key.attempt)

    def say_cancelled(self, epoch: int, submission_id: str, attempt: int) -> None:
        """Queue a cancel. Cancels in a row share a message, because a link breaks if too many
        messages wait."""
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

    def note_news(self, request: Request) -> None:
        """Record that there is news for the client."""
        self._with_news.append(request)

    def take_news(self) -> list[Request]:
        taken, self._with_news = self._with_news, []
        return taken

    def drop(self, reason: str) -> None:
        """Count a message that is not used, by reason."""
        self.counters[f"dropped.{reason}"] += 1

    def note_figures(
        self, request: Request, attempt: int, role: int, figures: worker_pb2.RowFigures
    ) -> None:
        """Record what a worker has measured of an attempt. What cannot be computed with is counted
        and left out."""
        try:
            check_figures(figures)
        except InvalidParameterError:
            self.drop("malformed_figures")
            return
        request.timeline.note_figures(attempt, role, figures)

    def add(self, request: Request) -> None:
        """Add a new request, whose label is free. If it waits, it is queued."""
        job, label = request.job, request.job.label
        assert job.submission_id not in self.requests
        assert label not in self.labels
        self.requests[job.submission_id] = request
        self.labels[label] = job.submission_id
        limits = self.accounts.of(job.tenant, self.now).limits
        self.store.own(label, job.submission_id, limits, request.cost_tokens)
        self.states[request.state] += 1
        if request.state in WAITING:
            self.queue.push(request)

    def find(self, submission_id: str, tenant: str) -> Request | None:
        """A live request of that tenant; None if there is none, or if it is another tenant's."""
        request = self.requests.get(submission_id)
        if request is None or request.job.tenant != tenant:  # guard: tenant of an id
            return None
        return request

    def alarm(self, request: Request, due: float) -> None:
        """Schedule a check of the request at `due`, unless an earlier one is scheduled."""
        before = self.alarms.rank_of(request)
        if before is None or due < before:
            self.alarms.put(request, due)

    def advance(self, request: Request, to: RequestState) -> None:
        """Change a request's state. All changes are made here."""
        before = request.state
        request.life.advance(to)
        self.states[before] -= 1
        self.states[to] += 1
        if before in WAITING and to not in WAITING:
            self.queue.discard(request)

    def note(
        self,
        request: Request,
        what: str,
        now: float,
        *,
        attempt: Attempt | None = None,
        note: str = "",
    ) -> None:
        """One moment of its life, for those who ask what became of it."""
        if attempt is None:
            request.journal.note(Mark(now, what, note=note))
            return
        names = map(self.members.worker_id, (attempt.prefill_epoch, attempt.decode_epoch))
        where, to = names
        request.journal.note(Mark(now, what, attempt.key.attempt, where, to, note))

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
        self._note_revision(request, attempt)
        is_move = attempt.state is AttemptState.MOVING
        self.note(request, MOVED if is_move else PLACED, attempt.placed, attempt=attempt)
        at = Placement(attempt.key.attempt, attempt.prefill_epoch, attempt.decode_epoch)
        self.store.place(request.job.submission_id, at)
        self.counters["attempts"] += 1
        for epoch in attempt.epochs():
            self._at.setdefault(epoch, {})[request.job.submission_id] = request
        for row in attempt.rows:
            self.rows[row] = request

    def _note_revision(self, request: Request, attempt: Attempt) -> None:
        members = map(self.members.get, (attempt.decode_epoch, attempt.prefill_epoch))
        fingerprint = next((its.announce.fingerprint for its in members if its is not None), "")
        if request.begun not in ("", fingerprint):
            self.counters["revision_changes"] += 1
        request.fingerprint = fingerprint

    def next_row(self) -> int:
        """A row number for a new attempt."""
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
            self.ended.add(request, self.members.worker_id, self.now)
        self.alarms.discard(request)
        self.store.release(job.submission_id, sum(_had(request)))
        request.drop_prompt()

    def _settle(self, request: Request) -> None:
        """Charge the tenant what the request has really cost: nothing if no worker had it."""
        had_worker = request.n_attempts > 0
        n_prompt, n_output = _had(request)
        account = self.accounts.of(request.job.tenant, self.now)
        account.settle(request.cost_tokens, n_prompt, n_output, self.now)
        if had_worker:
            self.queue.settle(request, n_prompt + n_output - request.cost_tokens)

    def attempts_at(self, epoch: int) -> list[tuple[Request, Attempt]]:
        """The live attempts that are assigned to that worker."""
        return [
            (request, request.attempt)
            for request in self._at.get(epoch, {}).values()
            if request.attempt is not None and not request.attempt.is_over
        ]

    def check_integrity(self) -> None:
        """Raise AssertionError unless all tables have the same requests and attempts."""
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


def _knows(request: Request, epoch: int, key: worker_pb2.AttemptKey) -> bool:
    """Whether its live attempt has that name at that worker."""
    attempt = request.attempt
    if attempt is None or epoch not in attempt.epochs():
        return False
    former = attempt.prefill_numbers if epoch == attempt.prefill_epoch else ()
    return key.attempt in (attempt.key.attempt, *former)


def _had(request: Request) -> tuple[int, int]:
    """The tokens of prompt and answer that its tenant is charged for."""
    return request.n_prompt if request.n_attempts else 0, len(request.answer.tokens)
