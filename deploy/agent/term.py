"""Terms of controllers: an agent obeys only the controller with the highest term that it has
seen."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from twolane.deploy.process.evidence import write_json
from twolane.deploy.spec.spec_json import from_json


@dataclass(frozen=True, slots=True)
class Term:
    """A controller, with a random id and a term above those of all earlier controllers."""

    number: int
    controller: str

    def __str__(self) -> str:
        return f"term {self.number} of controller {self.controller}"


class OldTermError(Exception):
    """The command is from a controller that another one has replaced."""


class TermFile:
    """The highest term that this host has seen, in a file that outlives the agent."""

    def __init__(self, path: Path) -> None:
        """Raises OSError or ValueError if the file cannot be read."""
        self._path = path
        self.highest: Term | None = None
        if path.exists():
            self.highest = from_json(Term, path.read_text(encoding="utf-8"))

    def check(self, term: Term) -> None:
        """Accept a command of that controller. Raises `OldTermError` if the term is lower than the
        highest seen, or equal and another controller's. When this returns, a higher term is on
        disk."""
        if term == self.highest:
            return
        if self.highest is not None and term.number <= self.highest.number:  # guard: term
            raise OldTermError(f"{term} is over: this agent has seen {self.highest}")
        write_json(self._path, asdict(term))
        self.highest = term
