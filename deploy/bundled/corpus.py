"""The training corpus: a deterministic, endless stream of documents, all made by grammars.

The share of each kind counts documents. A document's text lacks `BEGIN`; the tokenizer adds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from twolane.deploy.bundled.chat import draw_chat
from twolane.deploy.bundled.lines import copied_line
from twolane.deploy.bundled.markup import END, render_chat
from twolane.deploy.bundled.records import recall_document
from twolane.deploy.bundled.stories import Split, draw_plan, sentences, tell


def story_document(rng: Random, split: Split = Split.TRAIN) -> str:
    """A story of one episode, sometimes of two or three, closed by `END`."""
    return tell(rng, draw_plan(rng, split), rng.choice((1, 1, 1, 1, 1, 1, 2, 3))) + END


def story_part(rng: Random) -> str:
    """The rest of a training story from some sentence on, so that any sentence can open a text."""
    lines = sentences(tell(rng, draw_plan(rng, Split.TRAIN)))
    return " ".join(lines[rng.randrange(len(lines)) :]) + END


def copy_document(rng: Random) -> str:
    """One line repeated many times: only the repetition predicts it."""
    return "\n".join([copied_line(rng)] * rng.randint(2, 6)) + END


def chat_document(rng: Random) -> str:
    """A chat in the chat template."""
    return render_chat(draw_chat(rng))


SHARES: tuple[tuple[Callable[[Random], str], float], ...] = (
    (recall_document, 0.45),
    (chat_document, 0.25),
    (story_document, 0.18),
    (story_part, 0.04),
    (copy_document, 0.08),
)


def documents(seed: str) -> Iterator[str]:
    """An endless stream of training documents; the same seed gives the same documents."""
    rng = Random(seed)
    makers, shares = zip(*SHARES, strict=True)
    while True:
        yield rng.choices(makers, shares)[0](rng)


def held_out_stories(seed: str) -> Iterator[str]:
    """An endless stream of stories of held-out plans, each closed by `END`."""
    rng = Random(seed)
    while True:
        yield story_document(rng, Split.HELD_OUT)
