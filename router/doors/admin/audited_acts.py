"""Carries out every act of an operator: exactly once, with an event for the audit."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from twolane.errors import InvalidRequestError, TwolaneError
from twolane.router.operators.event_log import EventLog
from twolane.rpc.call_gate import Context
from twolane.security.gate import Gate
from twolane.v1 import acts_pb2, cluster_pb2

MOST_REMEMBERED = 1_000

Work = Callable[[], Awaitable[acts_pb2.ActResponse]]


@dataclass(frozen=True, slots=True)
class _Done:
    """An act that a caller has requested under an id, and its result."""

    what: str
    subject: str
    is_dry: bool
    task: asyncio.Task[acts_pb2.ActResponse]


class AuditedActs:
    """The acts of one router. `gate` identifies callers."""

    def __init__(self, events: EventLog, gate: Gate) -> None:
        self._events = events
        self._gate = gate
        self._acts: OrderedDict[tuple[str, str], _Done] = OrderedDict()  # by caller and id
        # The event loop itself has only weak references to them.
        self._running: set[asyncio.Task[acts_pb2.ActResponse]] = set()

    async def do(
        self, context: Context, what: str, subject: str, act: acts_pb2.Act, work: Work
    ) -> acts_pb2.ActResponse:
        """Run `work` to its end, even if the caller disconnects. `work` itself must respect
        `act.dry_run`. The same act with the same id gets the same answer, unless it has failed.
        Raises what `work` raises, and `InvalidRequestError` if the id belongs to another act."""
        who = self.caller(context)
        name = (who, act.request_id)
        known = self._acts.get(name) if act.request_id else None
        if known is not None and (known.what, known.subject, known.is_dry) != (
            what,
            subject,
            act.dry_run,
        ):
            raise InvalidRequestError(
                f"request_id {act.request_id!r} belongs to another act: {known.what} "
                f"{known.subject}",
                field="act.request_id",
            )
        if known is None or (known.task.done() and known.task.exception() is not None):
            running = self._run(who, what, subject, act, work)
            task = asyncio.create_task(running, name=f"act-{what}")
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            known = _Done(what, subject, act.dry_run, task)
            if act.request_id:
                self._remember(name, known)
        return await asyncio.shield(known.task)

    async def stop(self) -> None:
        """The router is stopping: end the acts that still run."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def watch(
        self,
        context: Context,
        what: str,
        subject: str,
        act: acts_pb2.Act,
        work: Callable[[], Awaitable[str]],
    ) -> None:
        """Run `work`, which tells its caller as it goes, and ends with the call. It returns its
        outcome in words, which the audit gets. Raises what `work` raises."""
        who = self.caller(context)
        audit = cluster_pb2.Audit(who=who, what=what, reason=act.reason, request_id=act.request_id)
        begun = f"{who}: {what} {subject}"
        try:
            outcome = await work()
        except TwolaneError as error:
            audit.refused = True
            self._events.note(f"act.{what}", subject, f"{begun}: refused: {error.message}", audit)
            raise
        except asyncio.CancelledError:
            self._events.note(f"act.{what}", subject, f"{begun}: its caller has left", audit)
            raise
        if not act.dry_run:
            audit.after = outcome
            self._events.note(f"act.{what}", subject, f"{begun}: {outcome}", audit)

    def caller(self, context: Context) -> str:
        """The caller's role and name."""
        return str(self._gate.identity(context))

    async def _run(
        self, who: str, what: str, subject: str, act: acts_pb2.Act, work: Work
    ) -> acts_pb2.ActResponse:
        audit = cluster_pb2.Audit(who=who, what=what, reason=act.reason, request_id=act.request_id)
        try:
            done = await work()
        except TwolaneError as error:
            audit.refused = True
            self._events.note(
                f"act.{what}", subject, f"{who}: {what} {subject}: refused: {error.message}", audit
            )
            raise
        if not act.dry_run:
            audit.before = ", ".join(_pairs(done, "before"))
            audit.after = ", ".join(_pairs(done, "after"))
            text = f"{who}: {what} {_in_words(subject, done)}"
            text += f"; not proven: {done.not_proven}" if done.not_proven else ""
            self._events.note(f"act.{what}", subject, text, audit)
        return done

    def _remember(self, name: tuple[str, str], done: _Done) -> None:
        self._acts[name] = done
        while len(self._acts) > MOST_REMEMBERED:
            self._acts.popitem(last=False)


def _in_words(subject: str, done: acts_pb2.ActResponse) -> str:
    """Text such as `decode=3: 2 > 3`, or of several changes `decode=3: pool decode: 2 > 3;
    decode-2: starts`. Changes of the subject itself name it."""
    words = [f"{its.before} > {its.after}" if its.before else its.after for its in done.changes]
    subjects = [its.subject for its in done.changes]
    named = "; ".join(map(": ".join, zip(subjects, words, strict=True)))
    if not {subject, *subject.split()}.isdisjoint(subjects):
        return named
    return f"{subject}: {words[0] if len(words) == 1 else named or 'it was so already'}"


def _pairs(done: acts_pb2.ActResponse, side: str) -> list[str]:
    """The value of a single change; of several, each value with its subject."""
    if len(done.changes) == 1:
        return [getattr(done.changes[0], side)]
    return [f"{its.subject}: {value}" for its in done.changes if (value := getattr(its, side))]
