"""Several ranks as one engine: every step is sent to all of them, results come from rank 0.

    loading --> ready --> closed
       |          |
       `--> lost <'         a rank died, failed, disagreed or is silent: all are killed at once

All ranks are child processes. A rank that waits for a dead peer inside NCCL never returns: a
process can be killed, whereas a thread would remain and block its device.
"""

from __future__ import annotations

import json
import logging
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twolane.engine.cuda.driver import CudaError
from twolane.engine.cuda.mapped import MappedPools
from twolane.engine.errors import (
    CheckpointError,
    EngineConfigError,
    RankLostError,
    UnsupportedModelError,
)
from twolane.engine.parallel.pool_file import PoolFile
from twolane.engine.progress import PROGRESS, Progress
from twolane.engine.ranks.channel import Channel, Kind
from twolane.engine.ranks.messages import StepWriter, decode_results, read_head
from twolane.engine.step import (
    ByteArray,
    DevicePool,
    DoneStep,
    EngineSpec,
    Mark,
    RowResult,
    RowWork,
    Step,
)

log = logging.getLogger(__name__)

CLOSE_GRACE_S = 10.0
SILENT_AFTER_S = 120.0  # a step may compile kernels first
_DEATH_S = 5.0  # for a process to exit after its stream has ended
_CAUSE_S = 1.0  # how long an error of a collective waits for the death that may have caused it


@dataclass(slots=True)
class Member:
    """A rank's process, and our end of its channel."""

    rank: int
    process: subprocess.Popen[bytes]
    channel: Channel


@dataclass(slots=True)
class _StepInFlight:
    """A step in flight: which ranks have answered so far."""

    digests: dict[int, int] = field(default_factory=dict)
    body: bytes = b""
    landed: threading.Event = field(default_factory=threading.Event)


class RankGroup:
    """Implements `twolane.engine.step.Engine`. Created by `twolane.engine.ranks.start.start_ranks`.

    `submit`, `run` and a step's `result` raise RankLostError once a rank is lost, within moments of
    its death; `on_lost` listeners are then called too, whether or not a step is in flight.
    """

    def __init__(
        self,
        members: Sequence[Member],
        folder: Path,
        file: PoolFile,
        *,
        progress: Progress | None = None,
        silent_after_s: float = SILENT_AFTER_S,
    ) -> None:
        self.steps_ahead = 0
        self.device_pool: DevicePool | None = None
        self._mapped: MappedPools | None = None
        self._file = file
        self._members = members
        self.folder = folder
        self._progress = progress
        self._silent_after_s = silent_after_s
        self._writer = StepWriter()
        self._number = 0
        self._in_flight: dict[int, _StepInFlight] = {}
        self._facts: dict[int, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._is_ready = threading.Event()  # or lost
        self._is_lost = threading.Event()
        self._is_closing = False
        self._losses: list[Exception] = []  # not empty: the group is lost
        self._listeners: list[Callable[[Exception], None]] = []
        self._readers = [
            threading.Thread(target=self._read, args=(m,), name=f"rank-{m.rank}", daemon=True)
            for m in members
        ]
        for reader in self._readers:
            reader.start()

    def start(self, what: dict[str, Any]) -> None:
        """Tell every rank its place and what to load."""
        for member in self._members:
            place = {**what["place"], "rank": member.rank}
            self._send(member, Kind.START, json.dumps({**what, "place": place}).encode())

    def wait_ready(self) -> None:
        """Wait until every rank has loaded its part. Raises the error that prevented it."""
        self._is_ready.wait()
        if self._losses:
            self.close()  # waits for the final frames of all ranks
            raise next(
                (error for error in self._losses if not isinstance(error, RankLostError)),
                self._losses[0],
            )
        facts = [self._facts[m.rank]["engine"] for m in self._members]
        for member, fact in zip(self._members, facts, strict=True):
            if fact != facts[0]:
                error = RankLostError(member.rank, "loaded another engine than rank 0")
                self.close()
                raise error
        spec = dict(facts[0]["spec"])
        spec["eos_token_ids"] = tuple(spec["eos_token_ids"])
        part_bytes = spec["page_bytes"]
        spec["page_bytes"] = part_bytes * len(self._members)
        self.spec = EngineSpec(**spec)
        self.pool: ByteArray = self._file.pages(self.spec.n_pages, self.spec.page_bytes)
        self._map([self._facts[m.rank]["exports"] for m in self._members], part_bytes)
        self.steps_ahead = facts[0]["steps_ahead"]

    def submit(self, work: Sequence[RowWork]) -> Step:
        """See `twolane.engine.step.Engine.submit`."""
        assert not self._is_closing, "the engine is closed"
        if not work:
            return DoneStep([])
        step = _StepInFlight()
        with self._lock:
            if self._losses:
                raise self._losses[0]
            self._number += 1
            number = self._number
            self._in_flight[number] = step
        message = self._writer.encode(number, work)
        for member in self._members:
            self._send(member, Kind.STEP, message)
        return _GroupStep(self, number, step)

    def only_launches(self, work: Sequence[RowWork]) -> bool:
        """It writes to other processes, which may not read."""
        return False

    def run(self, work: Sequence[RowWork]) -> list[RowResult]:
        """`submit` and wait."""
        return self.submit(work).result()

    def on_lost(self, listener: Callable[[Exception], None]) -> None:
        """Call the listener, on any thread, when a rank is lost; at once if one is lost already."""
        with self._lock:
            self._listeners.append(listener)
            losses = self._losses[:1]
        for error in losses:
            listener(error)

    @property
    def pids(self) -> list[int]:
        """The process ids of the ranks, in rank order."""
        return [member.process.pid for member in self._members]

    def close(self) -> None:
        """Let the ranks exit, and kill those that do not, however many, after `CLOSE_GRACE_S`;
        afterwards no rank is left, nor its pages. May be called twice."""
        self._is_closing = True
        mapped, self._mapped = self._mapped, None
        if mapped is not None:
            self.device_pool = None
            try:
                mapped.close()
            except CudaError as error:  # unmapped when this process exits; end the ranks now
                log.warning("pools of ranks stay mapped: %s", error)
        until_s = time.monotonic() + CLOSE_GRACE_S
        for member in self._members:
            if member.process.returncode is None and not _ask_to_close(member, until_s):
                member.process.kill()
        until_s = time.monotonic() + (0 if self._losses else CLOSE_GRACE_S)
        for member in self._members:
            try:
                member.process.wait(_left_s(until_s))
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
        for reader in self._readers:
            if reader is not threading.current_thread():
                reader.join()
        for member in self._members:
            member.channel.close()
        self._file.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- inside -----------------------------------------------------------------------------

    def _map(self, exports: list[list[str]], part_bytes: int) -> None:
        """Map the pools that ranks on GPUs have exported. If they cannot be mapped, their pages
        cannot be transferred, and serve this worker only."""
        if not all(exports):
            return
        parts = [bytes.fromhex(part) for each in exports for part in each]
        try:
            self._mapped = MappedPools(parts, self.spec.n_pages * part_bytes)
        except CudaError as error:
            log.warning("the pages of these ranks cannot be transferred: %s", error)
        else:
            self.device_pool = self._mapped.pool

    def wait_for(self, number: int, step: _StepInFlight) -> list[RowResult]:
        """Wait until every rank has answered, each after its part was complete on its device: then
        everything that they wrote into the step's pages is there, and may be transferred."""
        if not step.landed.wait(self._silent_after_s):
            text = f"has not answered for {self._silent_after_s:g} s"
            for member in self._members:
                if member.rank not in step.digests:
                    self._lose(RankLostError(member.rank, text))
        with self._lock:
            self._in_flight.pop(number, None)
            if len(step.digests) < len(self._members):
                raise self._losses[0]
        for rank, found in step.digests.items():
            if found != step.digests[0]:
                error = RankLostError(rank, f"disagrees with rank 0 about step {number}")
                self._lose(error)
                raise error
        return decode_results(step.body)

    def _send(self, member: Member, kind: Kind, body: bytes = b"") -> None:
        try:
            member.channel.send(kind, body)
        except BlockingIOError:
            text = f"has not read for {self._silent_after_s:g} s"
            self._lose(RankLostError(member.rank, text))
        except OSError:  # its reader notices too, and reports how it died
            pass

    def _read(self, member: Member) -> None:
        """Read one rank's frames, until its stream ends."""
        while (frame := member.channel.receive()) is not None:
            kind, body = frame
            if kind is Kind.RESULT:
                self._land(member.rank, body)
            elif kind is Kind.PROGRESS:
                if self._progress is not None:
                    name, *counts = json.loads(body)
                    self._progress(PROGRESS[name](*counts))
            elif kind is Kind.READY:
                with self._lock:
                    self._facts[member.rank] = json.loads(body)
                    if len(self._facts) == len(self._members):
                        self._is_ready.set()
            else:
                assert kind is Kind.FAILED, kind
                error = _error_of(member.rank, *json.loads(body))
                if isinstance(error, RankLostError):  # perhaps only because another rank died
                    self._is_lost.wait(_CAUSE_S)
                self._lose(error)
        if not self._is_closing:
            self._lose(RankLostError(member.rank, _ending(member.process)))

    def _land(self, rank: int, body: bytes) -> None:
        number, found = read_head(body)
        with self._lock:
            step = self._in_flight.get(number)
            if step is None:
                return
            step.digests[rank] = found
            if rank == 0:
                step.body = body
            if len(step.digests) == len(self._members):
                step.landed.set()

    def _lose(self, error: Exception) -> None:
        """Kill all ranks and wake all waiters. Later errors are mostly consequences."""
        with self._lock:
            self._losses.append(error)
            if len(self._losses) > 1:
                return
            listeners, steps = list(self._listeners), list(self._in_flight.values())
        self._is_lost.set()
        log.error("%s", error)
        for member in self._members:
            member.process.kill()
        for step in steps:
            step.landed.set()
        self._is_ready.set()
        for listener in listeners:
            listener(error)


@dataclass(frozen=True, slots=True)
class _GroupStep:
    group: RankGroup
    number: int
    step: _StepInFlight
    written: Mark | None = None  # each rank writes its own pages: its answer proves it

    def result(self) -> list[RowResult]:
        return self.group.wait_for(self.number, self.step)


def _ask_to_close(member: Member, until_s: float) -> bool:
    """False: it does not read."""
    try:
        return member.channel.send_at_once(Kind.CLOSE, _left_s(until_s))
    except OSError:  # it is gone
        return True


def _left_s(until_s: float) -> float:
    return max(0.0, until_s - time.monotonic())


def _error_of(rank: int, kind: str, text: str) -> Exception:
    """The error in a rank's final frame. Errors of an engine keep their class."""
    known = {
        error.__name__: error
        for error in (EngineConfigError, UnsupportedModelError, CheckpointError, MemoryError)
    }
    if kind in known:
        return known[kind](text)
    return RankLostError(rank, f"failed ({kind}: {text})")


def _ending(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(_DEATH_S)
    except subprocess.TimeoutExpired:
        return "closed its channel"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
