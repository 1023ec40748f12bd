"""Time stamps along a token's path, taken in the processes of an unmodified cluster.

    worker   submitted ... sampled -> landed -> applied -> shipped    one each per step
             posted -> announced -> joined                            per row that is handed over
    router   read -> told -> written                                  per message; per write
    client   received                                                 per message with tokens

`begin` wraps the methods at whose ends these happen, when their modules are imported: a process
that is not traced pays nothing. Also recorded: garbage collections, and how late a thread wakes
that sleeps for a millisecond. Rows are written to FOLDER/PID.stamps twice a second and at the
process's end, from a fixed-size ring.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

FOLDER = "TWOLANE_GAP_TRACE"  # environment variable
STAGES = (
    "sampled", "landed", "applied", "submitted", "shipped", "read", "told", "written", "received",
    "gc", "hiccup", "posted", "announced", "joined",
)  # fmt: skip
ROWS = 1 << 16
_EVERY_S = 0.5
_NAP_S = 0.001
Rows = npt.NDArray[np.int64]  # [n, 4]: stage, tokens or nanoseconds it took, epoch, nanoseconds
After = Callable[[Any, tuple[Any, ...]], None]  # gets the object and the call's arguments


class Ring:
    """The newest rows. Any thread may add; one at a time takes."""

    def __init__(self, n_rows: int = ROWS) -> None:
        self._rows: list[tuple[int, int, int, int] | None] = [None] * n_rows
        self._n = 0
        self._taken = 0

    def add(self, stage: str, amount: int = 0, epoch: int = 0) -> None:
        n = self._n
        self._n = n + 1
        row = (STAGES.index(stage), amount, epoch & 0x7FFF_FFFF_FFFF, time.monotonic_ns())
        self._rows[n % len(self._rows)] = row

    def take(self) -> Rows:
        """The rows since the last call; if there were too many, the newest."""
        end = self._n
        first = max(self._taken, end - len(self._rows))
        self._taken = end
        found = [self._rows[i % len(self._rows)] for i in range(first, end)]
        return np.array([row for row in found if row is not None], np.int64).reshape(-1, 4)


def n_tokens(message: Any) -> int:
    """Of a session message, whose tokens come in columns."""
    return sum(len(columns.token_ids) for columns in message.tokens)


def points(ring: Ring) -> dict[tuple[str, str, str], tuple[After | None, After | None]]:
    """By module, class and method: what to do before a call, and after it."""

    def stamp(stage: str) -> After:
        return lambda self, arguments: ring.add(stage)

    def read(stage: str) -> After:
        def add(self: Any, arguments: tuple[Any, ...]) -> None:
            epoch, message = arguments[:2]
            if n := n_tokens(message):
                ring.add(stage, n, epoch)

        return add

    def shipped(self: Any, arguments: tuple[Any, ...]) -> None:
        if n := n_tokens(arguments[0]):
            ring.add("shipped", n)

    def received(self: Any, arguments: tuple[Any, ...]) -> None:
        if n := arguments[0]:  # messages about an attempt, or an answer's end, have no tokens
            ring.add("received", n)

    return {
        ("twolane.worker.steps.step_runner", "_Pending", "succeed"): (stamp("sampled"), None),
        ("twolane.worker.page_returns", "PageReturns", "on_done"): (stamp("landed"), None),
        ("twolane.worker.metrics", "WorkerMetrics", "on_step"): (stamp("applied"), None),
        ("twolane.engine.cuda.engine", "CudaEngine", "submit"): (None, stamp("submitted")),
        ("twolane.kvtransfer.send.outbound", "Outbound", "on_posted"): (stamp("posted"), None),
        ("twolane.kvtransfer.receive.inbound", "Inbound", "on_done"): (stamp("announced"), None),
        ("twolane.decode_worker.role", "DecodeRole", "_run"): (None, stamp("joined")),
        ("twolane.worker.sessions.session", "Session", "send"): (None, shipped),
        ("twolane.router.router", "Router", "session_message"): (read("read"), read("told")),
        ("benchmarks.load.caller", "Answer", "note"): (received, None),
    }


def wrap(owner: type, name: str, before: After | None, after: After | None) -> None:
    """Make the method call `before` and `after` with its object and arguments, unless it raises."""
    original = getattr(owner, name)

    def wrapped(self: Any, *arguments: Any, **options: Any) -> Any:
        if before is not None:
            before(self, arguments)
        found = original(self, *arguments, **options)
        if after is not None:
            after(self, arguments)
        return found

    setattr(owner, name, wrapped)


def watch_writes(door: Any, ring: Ring) -> None:
    """Record each response that the gRPC door has written, with its tokens: an answer's own, and
    those of many answers on one stream."""
    generate, multiplexed = door.Door._generate, door.Multiplexed

    class Watched:
        def __init__(self, context: Any) -> None:
            self._context = context

        def __getattr__(self, name: str) -> Any:
            return getattr(self._context, name)

        async def write(self, response: Any) -> None:
            await self._context.write(response)
            is_one = hasattr(response, "tokens")
            if tokens := response.tokens if is_one else response.token_ids:
                ring.add("written", len(tokens))

    async def watched(self: Any, request: Any, context: Any) -> None:
        await generate(self, request, Watched(context))

    door.Door._generate = watched
    door.Multiplexed = lambda context, *rest: multiplexed(Watched(context), *rest)


class _Patcher(MetaPathFinder, Loader):
    """Patches modules when they are imported."""

    def __init__(self, patches: dict[str, Callable[[ModuleType], None]]) -> None:
        self._patches = patches

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        patch = self._patches.pop(name, None)
        if patch is None:
            return None
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def patches(ring: Ring) -> dict[str, Callable[[ModuleType], None]]:
    found: dict[str, Callable[[ModuleType], None]] = {}
    for (module, owner, name), (before, after) in points(ring).items():

        def patch(
            loaded: ModuleType,
            owner: str = owner,
            name: str = name,
            before: After | None = before,
            after: After | None = after,
        ) -> None:
            wrap(getattr(loaded, owner), name, before, after)

        assert module not in found, "one method a module"
        found[module] = patch
    found["twolane.router.doors.grpc_door"] = lambda door: watch_writes(door, ring)
    return found


def begin(folder: Path) -> None:
    """Trace this process, from now on until it ends."""
    ring = Ring()
    sys.meta_path.insert(0, _Patcher(patches(ring)))
    began: list[int] = []

    def collected(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            began.append(time.monotonic_ns())
        elif began:
            ring.add("gc", time.monotonic_ns() - began.pop(), info["generation"])

    gc.callbacks.append(collected)
    file = (folder / f"{os.getpid()}.stamps").open("ab", buffering=0)  # outlives the folder
    turn = threading.Lock()

    def write() -> None:
        with turn:
            file.write(ring.take().tobytes())

    atexit.register(write)
    thread = threading.Thread(target=_watch, args=(ring, write), daemon=True, name="gap-trace")
    thread.start()


def _watch(ring: Ring, write: Callable[[], None]) -> None:
    """Records wake-ups that are late by more than a tenth of a millisecond."""
    written_s = time.monotonic()
    while True:
        asked_ns = time.monotonic_ns()
        time.sleep(_NAP_S)
        late_ns = time.monotonic_ns() - asked_ns - int(_NAP_S * 1e9)
        if late_ns > 100_000:
            ring.add("hiccup", late_ns)
        if time.monotonic() > written_s + _EVERY_S:
            write()
            written_s = time.monotonic()


def read_stamps(path: Path) -> Rows:
    """The stamps that a process has left; a partial last row is dropped."""
    raw = np.fromfile(path, np.int64)
    return raw[: len(raw) // 4 * 4].reshape(-1, 4)
