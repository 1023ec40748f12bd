"""Chats: dialogues of one to a few exchanges in the chat template.

The assistant tells stories, recalls notes and facts about the user, repeats, counts, lists, writes
a small JSON object, introduces itself, and says that it does not know anything else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from twolane.deploy.bundled.facts import Exchange, event_exchanges, fact_exchanges, loose_exchanges
from twolane.deploy.bundled.lines import copied_line
from twolane.deploy.bundled.markup import Message
from twolane.deploy.bundled.phrases import (
    ABILITIES,
    ACKNOWLEDGEMENTS,
    COPY_REQUESTS,
    COUNT_REQUESTS,
    JSON_REQUESTS,
    LIST_REQUESTS,
    NOT_KNOWN,
    PREFIXES,
    SMALL_TALK,
    STORY_REQUESTS,
    SYSTEM_LINES,
    UNKNOWN_QUESTIONS,
)
from twolane.deploy.bundled.records import draw_notes
from twolane.deploy.bundled.stories import Split, draw_plan, invented_name, tell
from twolane.deploy.bundled.words import ANIMALS, BOYS, GIRLS, PEOPLE, VALUE_NOUNS, article


def casual(rng: Random, request: str) -> str:
    """`request` as people type it: sometimes without a capital or full stop, sometimes prefixed."""
    if rng.random() < 0.1:
        request = request.rstrip(".!?")
    if rng.random() < 0.1:
        request = request[0].lower() + request[1:]
    if rng.random() < 0.1:
        request = rng.choice(PREFIXES) + request[0].lower() + request[1:]
    return request


def story_exchanges(rng: Random) -> list[Exchange]:
    """A request that names some of the plan, the story, and perhaps a question about it."""
    plan = draw_plan(rng, Split.TRAIN)
    episodes = rng.choice((1, 1, 1, 1, 2, 3))
    template = rng.choice(STORY_REQUESTS)
    friend_kind = rng.choice(ANIMALS) if "{a_friend}" in template else None
    request = template.format(
        kind=plan.kind, a_kind=article(plan.kind), name=plan.name, topic=plan.topic,
        a_friend=article(friend_kind) if friend_kind else "",
        length=rng.choice(("", "", "short ")) if episodes == 1 else "long ",
    )  # fmt: skip
    exchanges = [(casual(rng, request), tell(rng, plan, episodes, friend_kind))]
    if rng.random() < 0.3:
        exchanges.append(
            rng.choice(
                (
                    (
                        f"What was the {plan.kind} called?",
                        f"The {plan.kind} was called {plan.name}.",
                    ),
                    (f"Who was {plan.name}?", f"{plan.name} was {article(plan.kind)}."),
                    ("What was the story about?", f"It was about the {plan.topic}."),
                )
            )
        )
    return exchanges


def notes_exchanges(rng: Random) -> list[Exchange]:
    """Notes first, alone or with the first question; then questions, answered by the value."""
    n_pairs = round(2 ** rng.uniform(1, 5.5))
    filler_chars = 0 if rng.random() < 0.6 else round(rng.uniform(0, 1200))
    notes = draw_notes(rng, Split.TRAIN, n_pairs, filler_chars)
    asked = rng.choices(notes.pairs, k=rng.randint(1, 8))
    exchanges = [
        (notes.style.question.format(key=pair.key), notes.answer(pair).strip()) for pair in asked
    ]
    if rng.random() < 0.5:
        return [(notes.text, rng.choice(ACKNOWLEDGEMENTS)), *exchanges]
    question, answer = exchanges[0]
    return [(f"{notes.text}\n{question}", answer), *exchanges[1:]]


def copy_exchanges(rng: Random) -> list[Exchange]:
    """An exchange in which the assistant repeats a line."""
    line = copied_line(rng)
    return [(rng.choice(COPY_REQUESTS).format(line=line), line)]


def task_exchanges(rng: Random) -> list[Exchange]:
    """An exchange in which the assistant counts, lists animals, or writes a JSON object."""
    task = rng.randrange(3)
    if task == 0:
        first = rng.randrange(100)
        last = first + rng.randint(2, 24)
        request = rng.choice(COUNT_REQUESTS).format(first=first, last=last)
        return [(casual(rng, request), ", ".join(map(str, range(first, last + 1))) + ".")]
    if task == 1:
        number = rng.randint(2, 6)
        word = ("two", "three", "four", "five", "six")[number - 2]
        request = rng.choice(LIST_REQUESTS).format(number=rng.choice((word, str(number))))
        return [(casual(rng, request), ", ".join(rng.sample(ANIMALS, number)) + ".")]
    name = invented_name(rng) if rng.random() < 0.4 else rng.choice(GIRLS + BOYS)
    kind = rng.choice(ANIMALS + PEOPLE)
    age = rng.randint(1, 99)
    request = rng.choice(JSON_REQUESTS).format(name=name, kind=kind, a_kind=article(kind), age=age)
    return [(request, json.dumps({"name": name, "kind": kind, "age": age}))]


def talk_exchanges(rng: Random) -> list[Exchange]:
    """Small talk, or a question that it cannot answer."""
    if rng.random() < 0.5:
        questions, answers = rng.choice(SMALL_TALK)
        return [
            (casual(rng, rng.choice(questions)), rng.choice(answers).format(abilities=ABILITIES))
        ]
    names = {"a": invented_name(rng), "b": rng.choice(GIRLS + BOYS), "c": rng.choice(VALUE_NOUNS)}
    names["line"] = copied_line(rng)
    question = rng.choice(UNKNOWN_QUESTIONS).format(**names, number=rng.randrange(1000))
    return [(casual(rng, question), rng.choice(NOT_KNOWN).format(abilities=ABILITIES))]


KINDS: tuple[Callable[[Random], list[Exchange]], ...] = (
    story_exchanges,
    notes_exchanges,
    fact_exchanges,
    loose_exchanges,
    event_exchanges,
    copy_exchanges,
    task_exchanges,
    talk_exchanges,
)
WEIGHTS = (6, 4, 3, 4, 1, 3, 2, 3)


def draw_chat(rng: Random) -> list[Message]:
    """A dialogue: perhaps a system line, then one to three kinds of exchange one after another."""
    messages = [Message("system", rng.choice(SYSTEM_LINES))] if rng.random() < 0.4 else []
    for kind in rng.choices(KINDS, WEIGHTS, k=rng.choice((1, 1, 1, 2, 3))):
        for question, answer in kind(rng):
            messages += [Message("user", question), Message("assistant", answer)]
    return messages
