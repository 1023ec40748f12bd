"""The processes of a host that are proven dead, and by what."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from twolane.deploy.process.evidence import write_json

CLASS_A = "A"  # its pidfd says so, or its pid is gone or another process' by now
CLASS_B = "B"  # the host has booted since
CLASS_C = "C"  # its host was switched off, as its fence command or an operator says
_MOST = 1000


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that is proven dead, how it went in words, and the routers that should know."""

    name: str
    epoch: int
    pid: int
    how: str
    proof_class: str
    routers: tuple[str, ...] = ()


class EndedProcesses:
    """The newest of them are kept in a folder. They are numbered from 1 as they become known."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError or ValueError."""
        folder.mkdir(exist_ok=True, mode=0o700)
        self._folder = folder
        self._all: dict[int, Ended] = {}
        self._next = 1
        for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
            value = json.loads(path.read_text(encoding="utf-8"))
            self._keep(Ended(**{**value, "routers": tuple(value["routers"])}))

    def add(self, ended: Ended) -> None:
        """It is on disk on return."""
        if self.find(ended.name, ended.epoch, ended.pid) is None:
            write_json(self._path(ended), asdict(ended))
            self._keep(ended)

    def find(self, name: str, epoch: int, pid: int) -> Ended | None:
        """A worker by its epoch, a router by its pid."""
        for ended in reversed(self._all.values()):
            if ended.epoch == epoch and (epoch or (ended.name, ended.pid) == (name, pid)):
                return ended
        return None

    def since(self, number: int) -> tuple[list[Ended], int]:
        """All that became known after that number, and the last number."""
        return [ended for n, ended in self._all.items() if n > number], self._next - 1

    def _keep(self, ended: Ended) -> None:
        self._all[self._next] = ended
        self._next += 1
        if len(self._all) > _MOST:
            oldest = self._all.pop(next(iter(self._all)))
            self._path(oldest).unlink(missing_ok=True)

    def _path(self, ended: Ended) -> Path:
        return self._folder / f"{ended.name}-{ended.epoch:016x}-{ended.pid}.json"
