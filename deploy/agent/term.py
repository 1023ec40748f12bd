"""Whose commands an agent takes: those of the controller of the highest term that it has seen."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from twolane.deploy.process.evidence import write_json


@dataclass(frozen=True, slots=True)
class Term:
    """A controller: its term is higher than those of all controllers before it, its id random."""

    number: int
    controller: str

    def __str__(self) -> str:
        return f"term {self.number} of controller {self.controller}"


class OldTermError(Exception):
    """The command is of a controller that another one has replaced."""


class TermFile:
    """The highest term that this host has seen. It outlives the agent."""

    def __init__(self, path: Path) -> None:
        """Raises OSError or ValueError for a file that cannot be read."""
        self._path = path
        self.highest: Term | None = None
        if path.exists():
            self.highest = Term(**json.loads(path.read_text(encoding="utf-8")))

    def check(self, term: Term) -> None:
        """Take a command of that controller. Raises `OldTermError` if the term is lower than the
        highest seen, or is that of another controller. A higher one is on disk on return."""
        if term == self.highest:
            return
        if self.highest is not None and term.number <= self.highest.number:  # guard: term
            raise OldTermError(f"{term} is over: this agent has seen {self.highest}")
        write_json(self._path, asdict(term))
        self.highest = term
