"""Short stories from a grammar: a plan sets who and what a story is about, and `tell` writes it.

A hash of the plan decides whether it is a training plan or a held-out plan. Training documents use
only training plans, so the combination of a held-out story's hero, name, plot and topic never
occurs in training.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random

from twolane.deploy.bundled.plots import PLOTS, Plot
from twolane.deploy.bundled.scenes import (
    ENDINGS,
    FEELINGS,
    FOODS,
    HABITS,
    HOMES,
    LINKS,
    OPENINGS,
    PASTIMES,
    PLACES,
    SPOTS,
    WEATHER,
)
from twolane.deploy.bundled.words import (
    ANIMALS,
    BOYS,
    FEMALE_KINDS,
    GIRLS,
    MALE_KINDS,
    PEOPLE,
    TRAITS,
    article,
    invented_word,
)

SENTENCE_END = re.compile(r'(?<=[.!?"]) (?=[A-Z"])')


class Split(Enum):
    """Which side of the hash a story plan or a record key lies on."""

    TRAIN = "train"
    HELD_OUT = "held out"


@dataclass(frozen=True, slots=True)
class Plan:
    """Who a story is about and what happens: all that decides its split."""

    kind: str
    name: str
    plot: Plot
    topic: str

    @property
    def split(self) -> Split:
        """Held out for one plan in sixteen."""
        text = f"story:{self.kind}:{self.name}:{self.plot.name}:{self.topic}"
        held_out = hashlib.sha256(text.encode()).digest()[0] < 16
        return Split.HELD_OUT if held_out else Split.TRAIN


def invented_name(rng: Random) -> str:
    """An invented name, which is in no list."""
    return invented_word(rng).capitalize()


def draw_plan(rng: Random, split: Split) -> Plan:
    """A plan of the wanted split; draws again until it has one."""
    while True:
        kind = rng.choice(ANIMALS if rng.random() < 0.7 else PEOPLE)
        names = GIRLS if kind in FEMALE_KINDS else BOYS if kind in MALE_KINDS else GIRLS + BOYS
        name = invented_name(rng) if rng.random() < 0.2 else rng.choice(names)
        plot = rng.choice(PLOTS)
        plan = Plan(kind, name, plot, rng.choice(plot.topics))
        if plan.split is split:
            return plan


def _pronouns(female: bool, prefix: str = "") -> dict[str, str]:
    he, him, his = ("she", "her", "her") if female else ("he", "him", "his")
    small = {f"{prefix}he": he, f"{prefix}him": him, f"{prefix}his": his}
    return small | {slot.capitalize(): word.capitalize() for slot, word in small.items()}


def _episode_slots(
    rng: Random, hero: dict[str, str], topic: str, friend_kind: str | None = None
) -> dict[str, str]:
    """The hero's slots and, drawn anew, everything that one episode needs besides."""
    female = rng.random() < 0.5
    friend = rng.choice([n for n in (GIRLS if female else BOYS) if n != hero["name"]])
    other_kinds = [animal for animal in ANIMALS if animal != hero["kind"]]
    kind = article(friend_kind or rng.choice(other_kinds))
    spots: Sequence[str] = rng.sample(SPOTS, 3)
    return {
        **hero, **_pronouns(female, "f"), "friend": friend, "a_friend": kind,
        "a_friend_cap": kind.capitalize(), "topic": topic, "a_topic": article(topic),
        "spot": spots[0], "spot2": spots[1], "spot3": spots[2], "place": rng.choice(PLACES),
        "weather": rng.choice(WEATHER), "food": rng.choice(FOODS),
        "feeling": rng.choice(FEELINGS),
    }  # fmt: skip


def tell(rng: Random, plan: Plan, episodes: int = 1, friend_kind: str | None = None) -> str:
    """The story of `plan`, in paragraphs parted by blank lines; `friend_kind` is its first helper.

    Later episodes take other plots and topics; the whole belongs to the first plan's split.
    """
    female = plan.name in GIRLS or plan.kind in FEMALE_KINDS
    if not female and plan.name not in BOYS and plan.kind not in MALE_KINDS:
        female = rng.random() < 0.5
    kind = f"{rng.choice(TRAITS)} {plan.kind}" if rng.random() < 0.7 else plan.kind
    hero = {
        **_pronouns(female), "name": plan.name, "kind": plan.kind, "hero": article(kind),
        "home": rng.choice(HOMES), "pastime": rng.choice(PASTIMES),
    }  # fmt: skip
    slots = _episode_slots(rng, hero, plan.topic, friend_kind)
    plots = [plan.plot, *rng.sample([p for p in PLOTS if p is not plan.plot], episodes - 1)]
    paragraphs = [[rng.choice(OPENINGS), rng.choice(HABITS)]]
    paragraphs[0] = [line.format_map(slots) for line in paragraphs[0]]
    for number, plot in enumerate(plots):
        if number:
            slots = _episode_slots(rng, hero, rng.choice(plot.topics))
            paragraphs.append([rng.choice(LINKS)])
        lines = [rng.choice(beat).format_map(slots) for beat in plot.beats]
        cut = rng.randint(4, 6)
        paragraphs[-1] += lines[:cut]
        paragraphs.append(lines[cut:])
    ending = rng.choice(ENDINGS)
    paragraphs[-1].append(ending.format_map({**slots, "lesson": rng.choice(plots[-1].lessons)}))
    return "\n\n".join(" ".join(lines) for lines in paragraphs)


def sentences(story: str) -> list[str]:
    """The sentences of a story in order; one that is spoken may come in two parts."""
    return SENTENCE_END.split(story.replace("\n\n", " "))
