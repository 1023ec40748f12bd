"""Recall: notes with key-value pairs, and questions about them.

A key is two words, and a hash of the key alone puts it in training or holds it out. Training
documents hold training keys only, so no held-out key, and no pair with one, is seen in training.
Between the pairs stand filler lines, sentences of stories of the same split.

A prompt (style "sentence", two pairs; generation goes on behind "Answer:"):

    Remember these notes.
    The code of the amber falcon is 4729.
    Mia the fox sat down and began to cry.
    The code of the teal anchor is glass lamp.
    Question: What is the code of the amber falcon?
    Answer:
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random

from twolane.deploy.bundled.markup import END, Message, render_chat
from twolane.deploy.bundled.stories import Split, draw_plan, sentences, tell
from twolane.deploy.bundled.words import KEY_NOUNS, KEY_WORDS, VALUE_NOUNS, VALUE_WORDS

HEADERS = (
    "Remember these notes.",
    "Notes:",
    "Read the notes and answer the questions.",
    "Here is what you need to know.",
)


def key_split(key: str) -> Split:
    """Where a key belongs: one in eight is held out."""
    held_out = hashlib.sha256(f"key:{key}".encode()).digest()[0] < 32
    return Split.HELD_OUT if held_out else Split.TRAIN


_ALL_KEYS = tuple(f"{word} {noun}" for word in KEY_WORDS for noun in KEY_NOUNS)
KEYS = {split: tuple(key for key in _ALL_KEYS if key_split(key) is split) for split in Split}


@dataclass(frozen=True, slots=True)
class Style:
    """How a document writes its pairs, questions and answers."""

    name: str
    pair: str
    question: str
    answer: str  # directly behind "Answer:", leading space included


STYLES = (
    Style(
        "sentence",
        "The code of the {key} is {value}.",
        "What is the code of the {key}?",
        " {value}",
    ),
    Style("list", "- {key}: {value}", "What is {key}?", " {value}"),
    Style("json", '"{key}": "{value}",', '"{key}"?', ' "{value}"'),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """One thing to remember; `start` is where its line begins in the notes, in characters."""

    key: str
    value: str
    start: int


@dataclass(frozen=True, slots=True)
class Notes:
    """A document's body: header, pairs and filler, one a line."""

    style: Style
    text: str
    pairs: tuple[Pair, ...]

    def question(self, pair: Pair) -> str:
        """The lines that ask for `pair`, ending in "Answer:"."""
        return f"\nQuestion: {self.style.question.format(key=pair.key)}\nAnswer:"

    def answer(self, pair: Pair) -> str:
        """The one right continuation of the question, without the end token."""
        return self.style.answer.format(value=pair.value)


@dataclass(frozen=True, slots=True)
class RecallPrompt:
    """One question; the model is right when it says `answer` and the end token, nothing else."""

    text: str
    answer: str
    style: str
    n_pairs: int
    pair_start: int  # in characters; the distance runs from here to the end of `text`


def draw_value(rng: Random, kind: str) -> str:
    """A value of several tokens: `number` 4729, `words` glass lamp, `code` QX7; or `mixed`."""
    if kind == "mixed":
        kind = rng.choice(("number", "words", "code"))
    if kind == "number":
        return str(rng.randrange(1000, 10000))
    if kind == "words":
        return f"{rng.choice(VALUE_WORDS)} {rng.choice(VALUE_NOUNS)}"
    letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
    return rng.choice(letters) + rng.choice(letters) + str(rng.randrange(10))


def filler_lines(rng: Random, split: Split, n_chars: int) -> list[str]:
    """Sentences of stories of `split`, in order of telling, at least `n_chars` characters."""
    lines: list[str] = []
    while n_chars > 0:
        for line in sentences(tell(rng, draw_plan(rng, split))):
            if n_chars <= 0:
                break
            lines.append(line)
            n_chars -= len(line) + 1
    return lines


def draw_notes(rng: Random, split: Split, n_pairs: int, filler_chars: int) -> Notes:
    """Notes with `n_pairs` distinct keys of `split` and filler strewn evenly between them."""
    style = rng.choice(STYLES)
    kind = rng.choice(("number", "words", "code", "mixed"))
    keys = rng.sample(KEYS[split], n_pairs)
    filler = filler_lines(rng, split, filler_chars)[::-1]
    order = [True] * n_pairs + [False] * len(filler)
    rng.shuffle(order)
    lines, pairs = [rng.choice(HEADERS)], []
    start = len(lines[0]) + 1
    for is_pair in order:
        if is_pair:
            pair = Pair(keys.pop(), draw_value(rng, kind), start)
            pairs.append(pair)
            lines.append(style.pair.format(key=pair.key, value=pair.value))
        else:
            lines.append(filler.pop())
        start += len(lines[-1]) + 1
    return Notes(style, "\n".join(lines), tuple(pairs))


def recall_document(rng: Random) -> str:
    """A training document: notes and one to many questions, each answer closed by `END`."""
    n_pairs = round(2 ** rng.uniform(1, 6 if rng.random() < 0.8 else 8))
    max_chars = 3600 if rng.random() < 0.8 else 10_000
    filler_chars = 0 if rng.random() < 0.4 else round(rng.uniform(0, max_chars - 30 * n_pairs))
    notes = draw_notes(rng, Split.TRAIN, n_pairs, filler_chars)
    asked = rng.choices(notes.pairs, k=1 if rng.random() < 0.2 else rng.randint(2, 24))
    turns = [f"{notes.question(pair)}{notes.answer(pair)}{END}" for pair in asked]
    return notes.text + "".join(turns)


def recall_prompt(
    rng: Random, split: Split, n_pairs: int, max_chars: int, *, in_chat: bool = False
) -> RecallPrompt:
    """One question about `n_pairs` pairs, its distance spread evenly up to about `max_chars`.

    In a chat, notes and question are the user's turn, and the prompt ends where the assistant's
    begins.
    """
    wanted = rng.uniform(0, max_chars)
    filler_chars = max(0, round(wanted - 30 * n_pairs + rng.uniform(0, 400)))
    notes = draw_notes(rng, split, n_pairs, filler_chars)
    asked = min(notes.pairs, key=lambda pair: abs(len(notes.text) - pair.start - wanted))
    text, answer, pair_start = notes.text + notes.question(asked), notes.answer(asked), asked.start
    if in_chat:
        turn = f"{notes.text}\n{notes.style.question.format(key=asked.key)}"
        text = render_chat([Message("user", turn)], add_generation_prompt=True)
        answer, pair_start = answer.strip(), pair_start + text.index(notes.text)
    return RecallPrompt(text, answer, notes.style.name, n_pairs, pair_start)
