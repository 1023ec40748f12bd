"""The situations that exact mode promises make no difference, and which of them go together."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import combinations, product
from typing import Any

DIMENSIONS: OrderedDict[str, Sequence[Any]] = OrderedDict(
    dtype=("float32", "bfloat16"),
    path=("colocated", "tcp", "unix", "shm"),
    chunk_tokens=(40, 512),
    event=(
        "calm",
        "preempted",
        "prefill killed before",
        "prefill killed during",
        "prefill killed after",
        "decode killed",
    ),
    prefix=("cold", "cached"),
    company=("alone", "crowd"),
    sampling=("greedy", "seeded"),
)
SOCKETS = {"float32": "tcp", "bfloat16": "unix"}  # of the pairwise situations


@dataclass(frozen=True)
class Setup:
    """What a cluster has to be started for."""

    dtype: str
    path: str
    chunk_tokens: int
    is_tight: bool  # so few pages that a crowd preempts


@dataclass(frozen=True)
class Situation:
    """One point of the product of all dimensions."""

    dtype: str
    path: str
    chunk_tokens: int
    event: str
    prefix: str
    company: str
    sampling: str

    @property
    def setup(self) -> Setup:
        return Setup(self.dtype, self.path, self.chunk_tokens, self.event == "preempted")

    def __str__(self) -> str:
        return ", ".join(str(getattr(self, field.name)) for field in fields(self))


def can_be(situation: Situation) -> bool:
    """Whether the values go together."""
    event = situation.event
    if situation.path == "colocated" and event.startswith("prefill"):
        return False  # there its death is the decode worker's
    if event == "prefill killed during" and situation.prefix == "cached":
        return False  # nothing is left to send in chunks
    return not (event == "preempted" and situation.company == "alone")


def everything() -> list[Situation]:
    all_of_them = (Situation(*values) for values in product(*DIMENSIONS.values()))
    return [situation for situation in all_of_them if can_be(situation)]


def pairs(situation: Situation) -> set[tuple[object, ...]]:
    """Every two of its values. Pages over unix sockets are sent by the code of tcp."""
    values = {name: getattr(situation, name) for name in DIMENSIONS}
    if situation.path in SOCKETS.values():
        values["path"] = "sockets"
    return set(combinations(values.items(), 2))


def pairwise() -> list[Situation]:
    """Every two values that go together meet in one of these, of either kind of socket with one
    dtype. Few setups first, as starting a cluster takes longest, then few situations on them; both
    are chosen greedily."""
    groups = by_setup(
        situation
        for situation in everything()
        if situation.path not in SOCKETS.values() or situation.path == SOCKETS[situation.dtype]
    )
    reach = {setup: set().union(*map(pairs, group)) for setup, group in groups.items()}
    missing = set().union(*reach.values())
    candidates: list[Situation] = []
    unreached = set(missing)
    while unreached:
        setup = max(reach, key=lambda each: len(reach[each] & unreached))
        candidates += groups[setup]
        unreached -= reach[setup]
    chosen: list[Situation] = []
    while missing:
        best = max(candidates, key=lambda situation: len(pairs(situation) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


def by_setup(situations: Iterable[Situation]) -> dict[Setup, list[Situation]]:
    """One cluster serves all situations of a setup, one after the other."""
    groups: dict[Setup, list[Situation]] = {}
    for situation in situations:
        groups.setdefault(situation.setup, []).append(situation)
    return groups
