"""Queries all workers at once, to continue an answer that another router has begun.

    FIND to all sessions ──> Found from each ──> ADOPT to those that have rows ──> Adopted from each

If routers share an index of submissions, ADOPT is sent to all sessions at once, and only the two
workers that the index names are awaited. If they know too little, all workers are queried.

A worker that appears meanwhile is queried, too, because a router that has just started knows no
workers yet.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from twolane.attempt_number import MOST_FENCE, fence_of
from twolane.errors import DeadlineError, TakenOverError, UnknownSubmissionError
from twolane.params import SamplingParams
from twolane.router.config import RouterConfig
from twolane.router.dispatch import commands
from twolane.router.dispatch.affinity import prefix_hashes
from twolane.router.members.membership import Membership
from twolane.router.requests.adopted import KnownAttempt, newest
from twolane.router.requests.request import Job
from twolane.router.store import Store
from twolane.rpc.params import params_from_proto
from twolane.security.identity import Identity
from twolane.v1 import inference_pb2, worker_pb2

_TAKEN = worker_pb2.Adopted.RESULT_TAKEN
AnswerT = TypeVar("AnswerT", worker_pb2.Found, worker_pb2.Adopted)


@dataclass(slots=True)
class _Asked(Generic[AnswerT]):
    """One query, and its answers so far."""

    command: worker_pb2.SessionRequest
    whom: Callable[[], Collection[int]]  # the epochs whose answers are awaited at present
    not_before: float = 0.0  # until then, more workers may announce themselves
    answers: dict[int, AnswerT] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def is_complete(self) -> bool:
        is_time = asyncio.get_running_loop().time() >= self.not_before
        return is_time and set(self.whom()) <= self.answers.keys()

    async def completed(self, until: float) -> None:
        """Wait until it is complete, or that time."""
        try:
            async with asyncio.timeout_at(until):
                while not self.is_complete():
                    self.news.clear()
                    await self.news.wait()
        except TimeoutError:
            pass  # the answers received so far are used


class Takeovers:
    """The takeovers of one router. `send` does nothing if no session to the epoch is open."""

    def __init__(
        self,
        config: RouterConfig,
        members: Membership,
        send: Callable[[int, worker_pb2.SessionRequest], None],
        store: Store,
    ) -> None:
        self._config = config
        self._store = store
        self._members = members
        self._send = send
        self.settled_at = 0.0  # when all workers have announced themselves; set at the start
        self._finds: dict[Hashable, list[_Asked[worker_pb2.Found]]] = {}
        self._adopts: dict[Hashable, list[_Asked[worker_pb2.Adopted]]] = {}

    async def take(
        self, wanted: inference_pb2.ResumeRequest, caller: Identity, deadline: float | None
    ) -> tuple[Job, KnownAttempt]:
        """Adopt all rows of an answer. Raises `UnknownSubmissionError`, `TakenOverError` and
        `DeadlineError`."""
        job = Job(
            submission_id=wanted.submission_id, resume_token=wanted.resume_token,
            fence=wanted.takeover, request_id=wanted.request_id, model="", token_ids=(),
            params=SamplingParams(), arrived=asyncio.get_running_loop().time(), deadline=deadline,
            caller=caller,
        )  # fmt: skip
        taken = await self._by_index(job, wanted.n_tokens) if wanted.submission_id else None
        job, known = taken or await self._by_asking(job)
        if deadline is not None and asyncio.get_running_loop().time() >= deadline:
            raise DeadlineError("the deadline passed while workers were asked for the answer")
        return self._complete(job, known), known

    async def _by_index(self, job: Job, n_tokens: int) -> tuple[Job, KnownAttempt] | None:
        """As `_by_asking`, with the index; None if it knows too little or is outdated."""
        found = await self._store.find(job.submission_id)
        if found is None or found.tenant != job.tenant:
            return None
        at, all_epochs = found.placement, self._awaited()
        named = {at.prefill_epoch, at.decode_epoch} & all_epochs
        if at.decode_epoch not in named:
            return None
        job = replace(job, fence=job.fence or min(MOST_FENCE, 1 + fence_of(at.attempt)))
        adopt = commands.adopt(job).adopt
        for epoch in all_epochs - named:  # they may have later attempts
            self._send(epoch, worker_pb2.SessionRequest(adopt=adopt))
        until = asyncio.get_running_loop().time() + self._config.dispatch.find_wait_s
        known = newest(await self.adopt(adopt, named, until))
        if known is None or known.number != at.attempt or len(known.tokens) < n_tokens:
            return None
        return job, known

    async def _by_asking(self, job: Job) -> tuple[Job, KnownAttempt]:
        """Query all workers, and adopt what they have. The returned job has its submission id and
        fence."""
        now, tenant = asyncio.get_running_loop().time(), job.tenant
        find = worker_pb2.Find(submission_id=job.submission_id)
        if job.request_id:
            find = worker_pb2.Find(tenant=tenant, request_id=job.request_id)
        wait_s = self._config.dispatch.find_wait_s
        found = await self.find(find, self._awaited, max(now + wait_s, self.settled_at))
        if not found:
            raise UnknownSubmissionError("no worker has any part of that answer")
        job = replace(
            job,
            submission_id=next(iter(found.values())).submission_id,
            fence=job.fence or min(MOST_FENCE, 1 + max(f.fence for f in found.values())),
        )
        adopt = commands.adopt(job).adopt
        now = asyncio.get_running_loop().time()
        answers = await self.adopt(adopt, found.keys(), now + wait_s)
        if any(answer.result == _TAKEN for answer in answers.values()):
            raise TakenOverError("another router has that answer, by a later takeover")
        known = newest(answers)
        if known is None:
            raise UnknownSubmissionError("no worker has any part of that answer and token")
        return job, known

    def _complete(self, job: Job, known: KnownAttempt) -> Job:
        """Complete the job with what the workers know."""
        assign = known.assign
        prompt = assign.token_ids[: assign.n_prompt]
        params = params_from_proto(assign.sampling)
        models = [m.announce.model for e in known.sides if (m := self._members.get(e)) is not None]
        if not models:
            raise UnknownSubmissionError("the workers that had that answer are gone")
        return replace(
            job,
            request_id=assign.request_id,
            model=models[0],
            token_ids=inference_pb2.TokenIds(ids=prompt).ids,
            params=params,
            priority=assign.priority,
            prefix_hashes=prefix_hashes(array("i", prompt), job.tenant),
        )

    def _awaited(self) -> set[int]:
        """The workers that may have rows and may answer."""
        now = asyncio.get_running_loop().time()
        return {m.epoch for m in self._members if not self._members.is_lost(m, now)}

    async def find(
        self, find: worker_pb2.Find, whom: Callable[[], Collection[int]], until: float
    ) -> dict[int, worker_pb2.Found]:
        """Ask the workers `whom` for the submission. Returns the answers of those that have rows of
        it, received by `until`; after a pause of this router, within `find_wait_s` of its end."""
        command = worker_pb2.SessionRequest(find=find)
        asked = _Asked[worker_pb2.Found](command, whom, self.settled_at)
        answers = await self._ask(self._finds, _name(find), asked, until)
        return {epoch: found for epoch, found in answers.items() if found.submission_id}

    async def adopt(
        self, adopt: worker_pb2.Adopt, epochs: Collection[int], until: float
    ) -> dict[int, worker_pb2.Adopted]:
        """Have these workers adopt the submission. Returns the answers received by `until`; after a
        pause of this router, within `find_wait_s` of its end."""
        command = worker_pb2.SessionRequest(adopt=adopt)
        asked = _Asked[worker_pb2.Adopted](command, lambda: epochs)
        name = adopt.submission_id, adopt.fence
        return await self._ask(self._adopts, name, asked, until)

    async def _ask(
        self,
        table: dict[Hashable, list[_Asked[AnswerT]]],
        name: Hashable,
        asked: _Asked[AnswerT],
        until: float,
    ) -> dict[int, AnswerT]:
        table.setdefault(name, []).append(asked)
        try:
            for epoch in asked.whom():
                self._send(epoch, asked.command)
            asyncio.get_running_loop().call_at(asked.not_before, asked.news.set)
            await self._wait(asked, until)
        finally:
            table[name] = [other for other in table[name] if other is not asked]
            if not table[name]:
                del table[name]
        return asked.answers

    async def _wait(self, asked: _Asked[AnswerT], until: float) -> None:
        """Until all have answered, or that time. After a pause of this router once more, as what
        they said meanwhile is still to be read."""
        now, wait_s = asyncio.get_running_loop().time, self._config.dispatch.find_wait_s
        await asked.completed(until)
        if now() - until > wait_s / 2:
            await asked.completed(now() + wait_s)

    # Sessions

    def on_message(self, epoch: int, message: worker_pb2.SessionResponse) -> None:
        for found in message.found:
            _note(self._finds.get(_name(found.find), ()), epoch, found)
        for adopted in message.adopted:
            name = adopted.submission_id, adopted.fence
            _note(self._adopts.get(name, ()), epoch, adopted)

    def on_opened(self, epoch: int) -> None:
        """A session has opened: send it the queries that it has missed."""
        for asked in self._all():
            if epoch in asked.whom() and epoch not in asked.answers:
                self._send(epoch, asked.command)

    def on_change(self) -> None:
        """The set of awaited workers may have changed: check the queries again."""
        for asked in self._all():
            asked.news.set()

    def _all(self) -> list[_Asked[worker_pb2.Found] | _Asked[worker_pb2.Adopted]]:
        finds = [asked for all_asked in self._finds.values() for asked in all_asked]
        return [*finds, *(asked for all_asked in self._adopts.values() for asked in all_asked)]


def _name(find: worker_pb2.Find) -> Hashable:
    return find.submission_id, find.tenant, find.request_id


def _note(all_asked: Collection[_Asked[AnswerT]], epoch: int, answer: AnswerT) -> None:
    for asked in all_asked:
        asked.answers[epoch] = answer
        asked.news.set()
