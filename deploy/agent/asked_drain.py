"""A drain that a file asks for, where no signal can be sent to the agent: it is an actor of a Ray.

    `drain`, with seconds ──▶ the agent lets its processes finish, and ends them ──▶ `drained`

The files are in the agent's state folder, which only its user can write.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from twolane.deploy.process.orphan import HEARTBEAT

_ASKED, _DONE = "drain", "drained"
_MARGIN_S = 10.0  # beyond the drain, until its end is proven
_STALE_S = 30.0  # an agent that has not written its heartbeat for so long is gone


def forget(state_dir: Path) -> None:
    """What was asked of an earlier agent does not count."""
    for name in (_ASKED, _DONE):
        (state_dir / name).unlink(missing_ok=True)


def asked(state_dir: Path) -> float | None:
    """For how many seconds processes may finish; None: there is no file. Raises ValueError for one
    that has no number."""
    path = state_dir / _ASKED
    return float(path.read_text(encoding="utf-8")) if path.exists() else None


def done(state_dir: Path) -> None:
    """All has ended, and is proven dead."""
    (state_dir / _DONE).touch()


def drain_below(folder: Path, drain_s: float, *, poll_s: float = 0.2) -> list[Path]:
    """Ask all agents whose state folders are below `folder`, and wait for them. Returns those that
    have not ended all in time."""
    end = time.monotonic() + drain_s + _MARGIN_S
    for agent in _live(folder):
        _ask(agent, drain_s)
    while left := [agent for agent in _live(folder) if not (agent / _DONE).exists()]:
        if time.monotonic() > end:
            return left
        for agent in left:
            if not (agent / _ASKED).exists():  # it has just started
                _ask(agent, drain_s)
        time.sleep(poll_s)
    return []


def _ask(agent: Path, drain_s: float) -> None:
    draft = agent / f"{_ASKED}.draft"
    draft.write_text(f"{drain_s}\n", encoding="utf-8")
    draft.replace(agent / _ASKED)


def _live(folder: Path) -> Iterator[Path]:
    for heartbeat in folder.rglob(HEARTBEAT):
        if time.time() - heartbeat.stat().st_mtime < _STALE_S:
            yield heartbeat.parent
