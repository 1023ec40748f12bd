"""Compiles and loads kernels before their first launch, on separate threads.

Threads do as well as processes (measured: 78 kernels of an 8B model take 14 s on one core, 8.7 s
with two threads on two; 2 s are Python's own): the compilers run without the interpreter lock, and
the compiled kernels are in this process at once. Triton's disk cache gets them too, as binaries
only, without the intermediate stages.

Compiling begins when all kernels are known: the dry run takes half a second of Python, but took ten
beside sixteen compiling threads, most of which were idle.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import TracebackType
from typing import Any

from triton import AsyncCompileMode, knobs

from twolane.engine.kernels.launch import Take

DryRun = Callable[[Take], None]
Context = Callable[[], AbstractContextManager[Any]]
MAX_THREADS = 16  # more would only wait for the interpreter lock
_LOOK_EVERY_S = 0.02


class CompileAhead:
    """Compiles the kernels that `dry_run`, called on another thread, finds. Starts at `with`;
    leaving it waits, and after an exception drops what has not begun.

    Any thread may launch kernels meanwhile; one that is being compiled is waited for. `around`: a
    context in which each thread works, such as a device.
    """

    def __init__(self, dry_run: DryRun, *, threads: int, around: Context = nullcontext) -> None:
        self._dry_run = dry_run
        self._around = around
        self._pool = ThreadPoolExecutor(threads, "compile")
        self._all_known = threading.Event()
        self._mode = AsyncCompileMode(_Loading(self._pool, around, self._all_known))
        self._director = ThreadPoolExecutor(1, "dry-run")
        self._all: Future[None] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> CompileAhead:
        self._stack.enter_context(knobs.compilation.scope())
        knobs.compilation.store_binary_only = True
        self._all = self._director.submit(self._run)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        with self._stack:
            self._director.shutdown()
            self._pool.shutdown()

    @property
    def counts(self) -> tuple[int, int]:
        """How many kernels are compiled, and how many are known."""
        futures = list(self._mode.raw_futures)
        return sum(future.done() for future in futures), len(futures)

    def wait(self, tell: Callable[[int, int], None]) -> None:
        """Wait until all are compiled, calling `tell` with `counts` now and then. Raises a
        compiler's error."""
        assert self._all is not None, "compiling begins with `with`"
        while not self._all.done():
            wait([self._all], _LOOK_EVERY_S)
            tell(*self.counts)
        self._all.result()

    def _run(self) -> None:
        with self._around(), self._mode:  # leaving the mode waits for all kernels
            try:
                self._dry_run(_compile)
            finally:
                self._all_known.set()


class _Loading(Executor):
    """Also loads a kernel on the thread that compiles it: some versions call a C compiler only
    then."""

    def __init__(self, pool: Executor, around: Context, begin: threading.Event) -> None:
        self._pool = pool
        self._around = around
        self._begin = begin

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._pool.submit(self._compile, fn)

    def _compile(self, compile_one: Callable[[], Any]) -> Any:
        self._begin.wait()
        with self._around():
            kernel = compile_one()
            _ = kernel.run
        return kernel


def _compile(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    kernel.warmup(*arguments, grid=grid, **options)


def threads_here(*, shared_by: int) -> int:
    """As many threads as there are cores for each of `shared_by` processes, less one that reads
    weights."""
    cores = len(os.sched_getaffinity(0)) // shared_by
    return max(1, min(cores - 1, MAX_THREADS))
