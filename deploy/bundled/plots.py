"""Plots: what can happen in a story, read from `plots.txt` beside this file.

Slots of a sentence: {name} {he} {him} {his} {He} {His} the hero; {friend} {fhe} {fhim} {fhis} {Fhe}
the helper; {a_friend} {a_friend_cap} the helper's kind with its article; {topic} {a_topic} what the
story is about; {spot} {spot2} {spot3} three places to look or go; {place} {weather} {food}
{pastime} {feeling} what their names say.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Plot:
    """A story's middle: topics it can be about, lessons it may end on, beats in order."""

    name: str
    topics: tuple[str, ...]
    lessons: tuple[str, ...]
    beats: tuple[tuple[str, ...], ...]  # each beat: sentences to choose one from

    def __post_init__(self) -> None:
        assert self.topics
        assert self.lessons
        assert len(self.beats) >= 8


def _parse(section: str) -> Plot:
    head, *beats = section.strip().split("\n\n")
    name, topics, lessons = head.splitlines()
    return Plot(
        name,
        tuple(topics.removeprefix("about: ").split(", ")),
        tuple(lessons.removeprefix("lesson: ").split("; ")),
        tuple(tuple(beat.splitlines()) for beat in beats),
    )


def read_plots(path: Path) -> tuple[Plot, ...]:
    """Every plot of the file, in its order."""
    _, *sections = path.read_text(encoding="utf-8").split("\n== ")
    return tuple(_parse(section) for section in sections)


PLOTS = read_plots(Path(__file__).with_name("plots.txt"))
