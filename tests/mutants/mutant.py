"""What is taken away, and who must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One guard, gone."""

    guard: str
    file: str
    find: str  # must occur exactly once, followed by the `# guard:` comment
    replace: str
    tests: tuple[str, ...]  # pytest ids; each must fail
