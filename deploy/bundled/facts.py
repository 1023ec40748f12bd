"""Everyday recall in chats: facts about the user, loose lists of things, events.

Their keys are never two words of `KEY_WORDS` and `KEY_NOUNS`: those are the benchmark's.
"""

from __future__ import annotations

from random import Random

from twolane.deploy.bundled.lines import PLAIN_WORDS, typed_characters
from twolane.deploy.bundled.phrases import ACKNOWLEDGEMENTS, COLOURS
from twolane.deploy.bundled.scenes import FOODS, PLACES
from twolane.deploy.bundled.stories import invented_name
from twolane.deploy.bundled.words import (
    ANIMALS,
    BOYS,
    GIRLS,
    PEOPLE,
    TRAITS,
    VALUE_NOUNS,
    VALUE_WORDS,
    invented_word,
)

# What users tell: statement, question, answer, and the kind of value that goes in.
FACTS = (
    *(
        (f"My {thing} is {{}}.", f"What is my {thing}?", f"Your {thing} is {{}}.", kind)
        for thing, kind in (
            ("name", "name"), ("favourite colour", "colour"), ("favourite food", "food"),
            ("favourite animal", "animal"), ("lucky number", "number"), ("room number", "number"),
            ("locker code", "number"), ("home town", "place"), ("street", "place"),
            ("brother's name", "name"), ("sister's name", "name"), ("dog's name", "name"),
            ("cat's name", "name"), ("teacher's name", "name"), ("password", "word"),
        )
    ),
    *(
        (f"My {who} is called {{}}.", f"What is my {who} called?", f"Your {who} is called {{}}.",
         "name")
        for who in ("dog", "cat", "brother", "sister", "mother", "friend", "horse", "boat")
    ),
    *(
        (f"The {thing} is {{}}.", f"What is the {thing}?", f"The {thing} is {{}}.", "secret")
        for thing in ("door code", "wifi password", "secret word", "gate code", "phone number")
    ),
    ("I am {}.", "Who am I?", "You are {}.", "name"),
    ("I am called {}.", "What am I called?", "You are called {}.", "name"),
    ("I live in {}.", "Where do I live?", "You live in {}.", "place"),
    ("I come from {}.", "Where do I come from?", "You come from {}.", "place"),
    ("I like {}.", "What do I like?", "You like {}.", "food"),
    ("I am {} years old.", "How old am I?", "You are {} years old.", "number"),
    ("I work as a {}.", "What is my job?", "You work as a {}.", "job"),
)  # fmt: skip

ASIDES = (
    "I have a dog.", "It is raining today.", "I like to read.", "I have two brothers.",
    "We met last week.", "I am a little tired.", "My house has a garden.", "Today is a good day.",
)  # fmt: skip

EVENTS = (
    "meeting", "party", "train", "concert", "class", "dinner", "show", "lesson", "visit", "game",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
RELATIONS = (
    "code", "price", "number", "colour", "owner", "room", "size", "name", "address", "password",
)  # fmt: skip

Exchange = tuple[str, str]  # what the user says, what the assistant answers


def draw_value(rng: Random, kind: str) -> str:
    """A value of `kind`; some words are invented."""
    if kind == "number":
        return str(rng.randrange(10 ** rng.randint(1, 5)))
    if kind == "place" or (kind == "name" and rng.random() < 0.4):
        return invented_name(rng)
    if kind == "word":
        return invented_word(rng)
    if kind == "secret":
        word = rng.choice((rng.choice(PLAIN_WORDS), invented_word(rng)))
        number = str(rng.randrange(10 ** rng.randint(1, 6)))
        return rng.choice((number, word + number, word, typed_characters(rng).strip(".")))
    listed = {
        "colour": COLOURS, "food": FOODS, "animal": ANIMALS, "name": GIRLS + BOYS, "job": PEOPLE,
    }  # fmt: skip
    return rng.choice(listed[kind])


def told_then_asked(
    rng: Random, statements: list[str], questions: list[Exchange], separator: str = " "
) -> list[Exchange]:
    """Statements in one turn or one by one, or together with the first question; then questions."""
    form = rng.random()
    if form < 0.4:
        (question, answer), *rest = questions
        return [(f"{separator.join(statements)}{separator}{question}", answer), *rest]
    turns = [separator.join(statements)] if form < 0.7 else statements
    return [*((turn, rng.choice(ACKNOWLEDGEMENTS)) for turn in turns), *questions]


def linked(rng: Random, statements: list[str]) -> list[str]:
    """The sentences, some of them joined to the one before by "and"."""
    joined = statements[:1]
    for statement in statements[1:]:
        if rng.random() < 0.3:
            small = (
                statement if statement.startswith("I ") else statement[0].lower() + statement[1:]
            )
            joined[-1] = f"{joined[-1].rstrip('.')}{rng.choice((' and ', ', and '))}{small}"
        else:
            joined.append(statement)
    return joined


def fact_exchanges(rng: Random) -> list[Exchange]:
    """The user tells facts about themselves and asks for some of them."""
    facts = [(*fact, draw_value(rng, fact[3])) for fact in rng.sample(FACTS, rng.randint(1, 6))]
    asked = rng.sample(facts, rng.randint(1, len(facts)))
    questions = [(question, answer.format(value)) for _, question, answer, _, value in asked]
    statements = [fact[0].format(fact[4]) for fact in facts]
    for aside in rng.sample(ASIDES, rng.choice((0, 0, 1, 2))):
        statements.insert(rng.randrange(len(statements) + 1), aside)
    return told_then_asked(rng, linked(rng, statements), questions)


def _thing(rng: Random) -> str:
    """A name for a thing in a list: a word, two, or an invented one."""
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice(PLAIN_WORDS)
    if kind == 4:
        return f"the {rng.choice(PLAIN_WORDS).lower()} {rng.choice(RELATIONS)}"
    if kind == 1:
        return invented_name(rng)
    if kind == 2:
        return (
            f"the {rng.choice(COLOURS + TRAITS + VALUE_WORDS)} {rng.choice(VALUE_NOUNS + PEOPLE)}"
        )
    return invented_word(rng)


def loose_exchanges(rng: Random) -> list[Exchange]:
    """A list of things with values in one of many forms, and questions for single values."""
    relation = rng.choice(RELATIONS)
    statement, question, answer, separator = rng.choice(
        (
            (f"The {relation} of {{k}} is {{v}}.", f"What is the {relation} of {{k}}?", "{v}", " "),
            (f"The {relation} of {{k}} is {{v}}.", f"What is the {relation} of {{k}}?",
             f"The {relation} of {{k}} is {{v}}.", " "),
            ("{k} = {v}", "What is {k}?", "{v}", "\n"),
            ("{k} = {v},", "How much is {k}?", "{v}", " "),
            ("{k}: {v}", "What is {k}?", "{v}", "\n"),
            ("{k}: {v}", "{k}?", "{v}", "\n"),
            ("{k} is {v}.", "What is {k}?", "{v}", " "),
            ("{k} has {v}.", "What does {k} have?", "{v}", " "),
            ("{k} costs {v}.", "How much does {k} cost?", "{k} costs {v}.", " "),
            ("{k} lives in {v}.", "Where does {k} live?", "{k} lives in {v}.", " "),
        )
    )  # fmt: skip
    things = list(dict.fromkeys(_thing(rng) for _ in range(rng.randint(1, 12))))
    kinds = ("number", "word", "secret", "name", "colour", "animal", "food")
    pairs = [{"k": thing, "v": draw_value(rng, rng.choice(kinds))} for thing in things]
    asked = rng.sample(pairs, rng.randint(1, min(4, len(pairs))))
    questions = [(question.format_map(pair), answer.format_map(pair)) for pair in asked]
    statements = [statement.format_map(pair) for pair in pairs]
    if statement[-1] == ".":
        questions = [(q, a[0].upper() + a[1:] if answer != "{v}" else a) for q, a in questions]
        statements = [line[0].upper() + line[1:] for line in statements]
        if rng.random() < 0.3:
            statements = linked(rng, statements)
    return told_then_asked(rng, statements, questions, separator)


def event_exchanges(rng: Random) -> list[Exchange]:
    """When and where something happens."""
    statements, questions = [], []
    for event in rng.sample(EVENTS, rng.randint(1, 3)):
        day, hour, place = rng.choice(DAYS), rng.randint(1, 12), rng.choice(PLACES)
        where = f"at {place}" if rng.random() < 0.5 else f"in room {rng.randrange(1000)}"
        when = rng.choice((f"on {day}", f"at {hour} o'clock", f"on {day} at {hour} o'clock"))
        statements.append(f"The {event} is {when} {where}.")
        questions.append((f"When is the {event}?", f"The {event} is {when}."))
        questions.append((f"Where is the {event}?", f"The {event} is {where}."))
    lead = "Remember: " if rng.random() < 0.3 else ""
    asked = rng.sample(questions, rng.randint(1, len(questions)))
    return told_then_asked(rng, linked(rng, [lead + statements[0], *statements[1:]]), asked)
