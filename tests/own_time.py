"""How long something took by itself: less the time for which its processes waited for the machine.

For bounds of real processes, which cannot run in virtual time: a pause of the product counts, also
on a busy machine, and a pause of the machine does not. The processes are this one and its
descendants.

    with own_time() as took:
        ...
    assert took.s() < 1.0

Time is looked at four times a second. What is lost in between makes that quarter of a second
shorter, down to a sixtieth of it, and no other: a pause on an idle machine counts, whatever was
lost before.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_TELLS_READY = Path("/proc/self/schedstat").exists()  # else the whole machine's waits for cores
_PRESSURES = tuple(
    Path("/proc/pressure", name)
    for name in (("io", "memory") if _TELLS_READY else ("io", "memory", "cpu"))
)
_NAP_S, _LATE_S = 0.02, 0.005
_NAPS_A_LOOK = 12
_LEAST_SHARE = 1 / 60  # of any time: on a machine that is always busy a bound holds, sixtyfold


class Moment(NamedTuple):
    """Seconds since an `OwnTime` was made, or since another moment."""

    own_s: float
    real_s: float
    lost_s: float  # may be more than has passed: several processes may wait at once

    def since(self, before: Moment) -> Moment:
        return Moment(*(now - then for now, then in zip(self, before, strict=True)))


class OwnTime:
    """Runs from when it is made. Whoever has it looks often. May be used from several threads."""

    def __init__(self, lost: Callable[[], float], clock: Callable[[], float] = time.monotonic):
        """`lost()`: seconds for which somebody has waited for the machine, since any time."""
        self._clock, self._lost = clock, lost
        self._lock = threading.Lock()
        self._first_s, self._first_lost_s = clock(), lost()
        # As of the last look. Event loops take this: one that looks itself, at each message, has
        # time for little else.
        self.seen = Moment(0.0, 0.0, 0.0)
        self._is_over = False

    def look(self) -> None:
        """Count the time since the last look."""
        with self._lock:
            if self._is_over:
                return
            now_s, lost_s = self._clock() - self._first_s, self._lost() - self._first_lost_s
            real_s, more_lost_s = now_s - self.seen.real_s, lost_s - self.seen.lost_s
            own_s = max(real_s - more_lost_s, real_s * _LEAST_SHARE)
            self.seen = Moment(self.seen.own_s + own_s, now_s, lost_s)

    def stop(self) -> None:
        self.look()
        self._is_over = True

    def s(self) -> float:
        """So far, or until it was stopped."""
        self.look()
        return self.seen.own_s

    def lost_s(self) -> float:
        self.look()
        return self.seen.lost_s


@contextmanager
def own_time() -> Iterator[OwnTime]:
    late, ready, is_over = _LateTime(), _ReadyTime(), threading.Event()
    took = OwnTime(lambda: late.s() + ready.s() + _pressure_s() + _steal_s())

    def nap() -> None:
        n_naps = 0
        while not is_over.wait(_NAP_S):
            late.wake()
            n_naps += 1
            if n_naps % _NAPS_A_LOOK == 0:
                took.look()

    sleeper = threading.Thread(target=nap, name="own time", daemon=True)
    sleeper.start()
    try:
        yield took
    finally:
        took.stop()
        is_over.set()
        sleeper.join()


class _LateTime:
    """How much longer than asked a thread sleeps, also now: also in a pause of the whole machine,
    which its kernel does not see."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due = time.monotonic() + _NAP_S
        self._ended_s = 0.0

    def wake(self) -> None:
        with self._lock:
            self._ended_s += self._present_s()
            self._due = time.monotonic() + _NAP_S

    def s(self) -> float:
        with self._lock:
            return self._ended_s + self._present_s()

    def _present_s(self) -> float:
        over_s = time.monotonic() - self._due
        return over_s if over_s > _LATE_S else 0.0


class _ReadyTime:
    """For which the threads of this process and its descendants could run and had no core, since
    each was started."""

    def __init__(self) -> None:
        self._ns: dict[str, int] = {}  # by thread, also of those that have ended

    def s(self) -> float:
        self._look(os.getpid())
        return sum(self._ns.values()) / 1e9

    def _look(self, pid: int) -> None:
        with suppress(OSError):  # it has ended
            for thread in os.listdir(f"/proc/{pid}/task"):
                with suppress(OSError):
                    folder = f"/proc/{pid}/task/{thread}"
                    self._ns[thread] = int(_read(f"{folder}/schedstat").split()[1])
                    for child in _read(f"{folder}/children").split():
                        self._look(int(child))


def _read(path: str) -> bytes:
    """Its first bytes, four times as fast as `Path.read_bytes`: threads are many."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 65536)
    finally:
        os.close(fd)


def _pressure_s() -> float:
    """For which at least one task of the machine waited for one of these."""
    found_us = 0
    for file in _PRESSURES:
        with suppress(OSError):  # a kernel without them
            found_us += int(re.findall(r"some .*total=(\d+)", file.read_text())[0])
    return found_us / 1e6


def _steal_s() -> float:
    """For which a core of this machine was another machine's."""
    return int(Path("/proc/stat").read_text().split(maxsplit=9)[8]) / os.sysconf("SC_CLK_TCK")
