"""Checks the answers of a live cluster: each worker alone, then each pair of prefill and decode
worker, on the same prompts.

    each worker alone   prompt --> tokens     most agree: that is the reference
    each pair           prompt --> P -- pages --> D --> tokens, compared with it; then once more,
                                                        when caches on both sides have the prompt

Few run at a time, and no request of a pair ever waits in a queue: clients come first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from twolane.errors import InternalError, OverloadedError, TwolaneError
from twolane.router.background import Background
from twolane.router.members.member import Member
from twolane.router.operators.comparison import (
    NOT_EXACT,
    Answer,
    answer_of,
    choose_reference,
    difference,
    sampling,
)
from twolane.v1 import admin_pb2, facts_pb2

MOST_AT_ONCE = 4
TRIES, PAUSE_S = 20, 0.5  # while a worker has no room
ResultT = TypeVar("ResultT")
AskAlone = Callable[
    [Member, facts_pb2.AnswerAloneRequest], Awaitable[facts_pb2.AnswerAloneResponse]
]
# Has a pair answer a prompt. Raises `TwolaneError`, and if other workers have answered.
AskPair = Callable[[Member, Member, Sequence[int]], Awaitable[Answer]]
Tell = Callable[[admin_pb2.CheckClusterResponse], Awaitable[None]]  # one call at a time


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """`is_fault`: an engine has failed on it, as none does on a sound page."""

    why: str
    is_fault: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    compared: int
    different: int
    failed: int  # there was no comparison

    def __str__(self) -> str:
        text = f"{self.compared} compared, {self.different} different"
        return f"{text}, {self.failed} not compared" if self.failed else text


class ClusterCheck:
    """One check. `prompts` and `max_tokens` fit every worker."""

    def __init__(
        self,
        workers: Sequence[Member],
        pairs: Sequence[tuple[Member, Member]],
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        *,
        ask_alone: AskAlone,
        ask_pair: AskPair,
        tell: Tell,
    ) -> None:
        self._workers = workers
        self._pairs = pairs
        self._prompts = prompts
        self._max_tokens = max_tokens
        self._ask_alone = ask_alone
        self._ask_pair = ask_pair
        self._tell = tell
        self._room = asyncio.Semaphore(MOST_AT_ONCE)
        self._left = len(workers) + len(pairs)
        self._answered: asyncio.Queue[tuple[Member, Member, list[Answer] | NoAnswer]] = (
            asyncio.Queue()
        )
        self._references: list[Answer] = []
        self._exact = True
        self._reference = ""
        self._told = [0, 0, 0]

    async def run(self) -> Outcome:
        alone = await asyncio.gather(*map(self._alone, self._workers))
        answers = {
            member.worker_id: its
            for member, its in zip(self._workers, alone, strict=True)
            if not isinstance(its, NoAnswer)
        }
        if answers:
            self._choose(answers)
        for member, its in zip(self._workers, alone, strict=True):
            await self._compare(member, member, its)
        async with Background() as asking:
            for prefill, decode in self._pairs:
                asking.start(self._pair(prefill, decode), name=f"check {prefill.worker_id}")
            for _ in self._pairs:  # here, since `tell` takes one message at a time
                await self._compare(*await self._answered.get())
        compared, different, failed = self._told
        return Outcome(compared=compared, different=different, failed=failed)

    def _choose(self, answers: dict[str, list[Answer]]) -> None:
        """The reference is one worker's answers to all prompts: those that most agree with."""
        whole = {name: _joined(its) for name, its in answers.items()}
        self._reference = choose_reference(whole, exact=self._exact)
        self._references = answers[self._reference]

    async def _alone(self, member: Member) -> list[Answer] | NoAnswer:
        answers = []
        for prompt in self._prompts:
            request = facts_pb2.AnswerAloneRequest(
                expect_epoch=member.epoch, token_ids=prompt, sampling=sampling(self._max_tokens)
            )
            try:
                response = await self._patiently(partial(self._ask_alone, member, request))
            except TwolaneError as error:
                return NoAnswer(error.message, isinstance(error, InternalError))
            self._exact = self._exact and response.exact
            answers.append(answer_of(response.tokens))
        return answers

    async def _pair(self, prefill: Member, decode: Member) -> None:
        self._answered.put_nowait((prefill, decode, await self._answers(prefill, decode)))

    async def _answers(self, prefill: Member, decode: Member) -> list[Answer] | NoAnswer:
        """Twice each prompt: the second time from the caches."""
        if not self._references:
            return NoAnswer("no worker has answered alone")
        answers: list[Answer] = []
        for prompt in (*self._prompts, *self._prompts):
            try:
                answers.append(
                    await self._patiently(partial(self._ask_pair, prefill, decode, prompt))
                )
            except TwolaneError as error:
                return NoAnswer(error.message, isinstance(error, InternalError))
        return answers

    async def _patiently(self, ask: Callable[[], Awaitable[ResultT]]) -> ResultT:
        for tries_left in range(TRIES, 0, -1):
            try:
                async with self._room:
                    return await ask()
            except OverloadedError:
                if tries_left == 1:
                    raise
            await asyncio.sleep(PAUSE_S)
        raise AssertionError("the last try returns or raises")

    async def _compare(
        self, prefill: Member, decode: Member, answers: list[Answer] | NoAnswer
    ) -> None:
        self._left -= 1
        told = admin_pb2.CheckClusterResponse(
            prefill_worker=prefill.worker_id,
            decode_worker=decode.worker_id,
            reference=self._reference,
            exactness="" if self._exact else NOT_EXACT,
            left=self._left,
        )
        if isinstance(answers, NoAnswer):
            if answers.is_fault:
                told.difference = answers.why
            else:
                told.error = answers.why
        else:
            self._fill(told, answers)
        self._told[2 if told.error else 0] += 1
        self._told[1] += not (told.error or told.equal)
        await self._tell(told)

    def _fill(self, told: admin_pb2.CheckClusterResponse, answers: Sequence[Answer]) -> None:
        told.prompts = len(answers)
        told.tokens = sum(len(answer.tokens) for answer in answers)
        told.equal = True
        for number, answer in enumerate(answers):
            which = number % len(self._prompts)
            its = difference(self._references[which], answer, exact=self._exact)
            if its is not None:
                told.equal = False
                told.differs_at = its.at
                told.prompt_tokens = len(self._prompts[which])
                told.difference = its.text
                return


def _joined(answers: Sequence[Answer]) -> Answer:
    """All of them as one, to count who agrees with whom."""
    return Answer(
        tokens=tuple(token for answer in answers for token in answer.tokens),
        logprobs=tuple(logprob for answer in answers for logprob in answer.logprobs),
        tops=tuple(top for answer in answers for top in answer.tops),
    )
