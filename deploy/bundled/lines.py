"""Lines to copy, of every kind: sentences, loose words, invented words, characters of all scripts.

They train every token of the vocabulary, including the bytes of rare characters.
"""

from __future__ import annotations

import string
from random import Random

from twolane.deploy.bundled.stories import Split, draw_plan, sentences, tell
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

PLAIN_WORDS = VALUE_NOUNS + VALUE_WORDS + ANIMALS + PEOPLE + TRAITS + GIRLS + BOYS
TYPED = string.ascii_letters + string.digits + string.punctuation
# Ranges of printable characters: Latin with accents, Greek, Cyrillic, Kana, Chinese, emoji.
SCRIPTS = (
    (0xC0, 0x17F), (0x391, 0x3C9), (0x410, 0x44F), (0x3041, 0x3096), (0x4E00, 0x9FA5),
    (0x1F600, 0x1F64F),
)  # fmt: skip


def shuffled_words(rng: Random) -> str:
    """The words of a few story sentences in no order."""
    lines = sentences(tell(rng, draw_plan(rng, Split.TRAIN)))
    words = " ".join(rng.sample(lines, 3)).split()
    return " ".join(rng.sample(words, rng.randint(2, min(20, len(words)))))


def typed_characters(rng: Random) -> str:
    """Characters of a keyboard at random, without spaces."""
    return "".join(rng.choices(TYPED, k=rng.randint(3, 24)))


def script_words(rng: Random) -> str:
    """One to four words in one script, perhaps behind a plain word."""
    first, last = rng.choice(SCRIPTS)
    words = [
        "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 6)))
        for _ in range(rng.randint(1, 4))
    ]
    return " ".join([rng.choice(PLAIN_WORDS), *words] if rng.random() < 0.5 else words)


def copied_line(rng: Random) -> str:
    """A line of any of the kinds above, or a whole sentence."""
    kind = rng.randrange(7)
    if kind == 0:
        return rng.choice(sentences(tell(rng, draw_plan(rng, Split.TRAIN))))
    if kind == 1:
        return " ".join(rng.choices(PLAIN_WORDS, k=rng.randint(2, 20)))
    if kind == 2:
        return " ".join(invented_word(rng) for _ in range(rng.randint(1, 9)))
    if kind == 3:
        words = [
            invented_word(rng) if rng.random() < 0.5 else rng.choice(PLAIN_WORDS) for _ in "12345"
        ]
        return " ".join(words)
    if kind == 4:
        return shuffled_words(rng)
    return typed_characters(rng) if kind == 5 else script_words(rng)
