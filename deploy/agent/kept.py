"""What controllers want their cluster to be, kept on each host beside their term.

A host that was silent has an old one. Of all that a controller finds, the one of the highest term
counts, then the one of the highest revision, which rises with each save: a controller has a term
above all that it has found.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path

from twolane.deploy.controller.desired import Desired
from twolane.deploy.process.evidence import write_json
from twolane.deploy.spec.spec_json import from_json
from twolane.v1 import agent_pb2

log = logging.getLogger(__name__)


class KeptDesired:
    """One host's. It outlives the agent."""

    def __init__(self, path: Path) -> None:
        """Raises OSError or ValueError for a file that cannot be read."""
        self._path = path
        self.value: agent_pb2.Desired | None = None
        self._desired: Desired | None = None
        if path.exists():
            self._take(_read(path))

    def write(self, value: agent_pb2.Desired) -> None:
        """It is on disk on return, unless a later one is there. Raises OSError."""
        if self.value is not None and _age(value) < _age(self.value):
            return
        write_json(self._path, [value.term, value.revision, value.json])
        self._take(value)

    def wanted_on(self, host: str) -> set[str] | None:
        """The workers that are to run there; None: not known so far, or not in words of this
        version."""
        if (desired := self._desired) is None:
            return None
        return {s.name for s in desired.seats if s.host == host and desired.is_wanted(s.name)}

    def _take(self, value: agent_pb2.Desired) -> None:
        self.value, self._desired = value, None
        try:
            self._desired = parsed(value)
        except ValueError as error:  # its host runs on; its controllers have to know
            log.error("what the cluster is to be was written by another version: %s", error)


def latest(found: Iterable[agent_pb2.Desired]) -> agent_pb2.Desired | None:
    """The one that counts; None: there is none."""
    return max(found, key=_age, default=None)


def parsed(value: agent_pb2.Desired | None) -> Desired | None:
    """What the last controller wanted; None: unknown, or what its topology says. Raises
    ValueError."""
    return from_json(Desired, value.json) if value is not None and value.json else None


def _read(path: Path) -> agent_pb2.Desired:
    found = json.loads(path.read_text(encoding="utf-8"))
    try:
        term, revision, text = found
        return agent_pb2.Desired(term=term, revision=revision, json=text)
    except TypeError as error:
        raise ValueError(f"{path} holds {found!r}") from error


def _age(its: agent_pb2.Desired) -> tuple[int, int]:
    return its.term, its.revision
