"""Reads deploy/docker/Dockerfile, as far as it goes there."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "deploy" / "docker"
TARGETS = ("router", "worker-cpu", "worker")


@dataclass(frozen=True, slots=True)
class Stage:
    """`base` is another stage's name, or an image. `steps`: each an instruction and its text."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def texts(self, instruction: str) -> list[str]:
        return [text for its, text in self.steps if its == instruction]


def stages() -> dict[str, Stage]:
    """By name. Raises ValueError."""
    found: dict[str, Stage] = {}
    newest: Stage | None = None
    for instruction, text in _steps((DOCKER / "Dockerfile").read_text()):
        if instruction == "FROM":
            match = re.fullmatch(r"(\S+) AS (\S+)", text)
            if match is None:
                raise ValueError(f"FROM {text}")
            newest = found[match[2]] = Stage(match[2], match[1])
        elif newest is not None:
            newest.steps.append((instruction, text))
        elif instruction != "ARG":
            raise ValueError(f"{instruction} before any stage")
    return found


def _steps(text: str) -> Iterator[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for step in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        instruction, _, rest = step.partition(" ")
        if instruction not in ("FROM", "ARG", "RUN", "COPY", "ENV", "WORKDIR", "USER", "CMD"):
            raise ValueError(step)
        yield instruction, rest


def lineage(name: str) -> list[Stage]:
    """The stage and those that it is based on, the oldest first."""
    known = stages()
    found = []
    while name in known:
        found.append(known[name])
        name = known[name].base
    return found[::-1]


def environment(name: str) -> dict[str, str]:
    pairs = [
        pair for its in lineage(name) for text in its.texts("ENV") for pair in shlex.split(text)
    ]
    return dict(pair.split("=", 1) for pair in pairs)


def command(name: str) -> list[str]:
    (text,) = stages()[name].texts("CMD")
    found: list[str] = json.loads(text)
    return found
