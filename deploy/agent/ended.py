"""The processes of a host that are proven dead, each with its proof."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from twolane.deploy.process.evidence import json_files, write_json
from twolane.deploy.spec.spec_json import from_json

CLASS_A = "A"  # by its pidfd, or because its pid is gone or belongs to another process
CLASS_B = "B"  # the host has rebooted since
CLASS_C = "C"  # its host was switched off, by its fence command or according to an operator
_MOST = 1000


class NeverHereError(Exception):
    """This host has no evidence that the process was ever started here."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that is proven dead, how it ended as text, and the routers to report it to."""

    name: str
    epoch: int
    pid: int
    how: str
    proof_class: str
    routers: tuple[str, ...] = ()


class EndedProcesses:
    """The newest ended processes, stored in a folder. They are numbered from 1 as they become
    known."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError or ValueError."""
        folder.mkdir(exist_ok=True, mode=0o700)
        self._folder = folder
        self._all: dict[int, Ended] = {}
        self._next = 1
        for path in sorted(json_files(folder), key=lambda path: path.stat().st_mtime_ns):
            self._keep(from_json(Ended, path.read_text(encoding="utf-8")))

    def add(self, ended: Ended) -> None:
        """Add a process. When this returns, it is on disk."""
        if self.find(ended.name, ended.epoch, ended.pid) is None:
            write_json(self._path(ended), asdict(ended))
            self._keep(ended)

    def find(self, name: str, epoch: int, pid: int) -> Ended | None:
        """Find a worker by its epoch, or a router by its pid."""
        for ended in reversed(self._all.values()):
            if ended.epoch == epoch and (epoch or (ended.name, ended.pid) == (name, pid)):
                return ended
        return None

    def forget(self, name: str, epoch: int, pid: int) -> None:
        """Forget an earlier router: one runs that has its name and its pid."""
        for number, ended in self._all.items():
            if (ended.name, ended.epoch, ended.pid) == (name, epoch, pid):
                self._path(self._all.pop(number)).unlink(missing_ok=True)
                return

    def since(self, number: int) -> tuple[list[Ended], int]:
        """All processes added after `number`, and the last number."""
        return [ended for n, ended in self._all.items() if n > number], self._next - 1

    def _keep(self, ended: Ended) -> None:
        self._all[self._next] = ended
        self._next += 1
        if len(self._all) > _MOST:
            oldest = self._all.pop(next(iter(self._all)))
            self._path(oldest).unlink(missing_ok=True)

    def _path(self, ended: Ended) -> Path:
        return self._folder / f"{ended.name}-{ended.epoch:016x}-{ended.pid}.json"
