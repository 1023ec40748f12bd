"""Compiles and loads kernels before their first launch.

    dry run -> all kernels -> those in Triton's cache --------------------------> load, on threads
                              the others -> compiled by processes, into the cache -----^

Loading is mostly Python's own work: a few threads do. What processes do not compile is compiled on
those threads. The cache gets binaries only, without the intermediate stages.

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
from functools import partial
from types import TracebackType
from typing import Any

from triton import AsyncCompileMode, knobs
from triton.runtime.driver import driver
from triton.runtime.jit import MockTensor

from twolane.engine.kernels.compile_processes import Compilers, Wanted
from twolane.engine.kernels.launch import Take

DryRun = Callable[[Take], None]
Context = Callable[[], AbstractContextManager[Any]]
_Pair = tuple[Wanted, Future[Any]]
MAX_PROCESSES = 16  # the slowest kernel alone takes as long as the others on so many cores
_THREADS = 4  # more wait for the interpreter lock
_LOOK_EVERY_S = 0.02


class CompileAhead:
    """Compiles the kernels that `dry_run`, called on another thread, finds: in so many `processes`,
    without any on `threads`. Starts at `with`; leaving it waits, and after an exception drops what
    has not begun.

    Any thread may launch kernels meanwhile; one that is being compiled is waited for. `around`: a
    context in which each thread works, such as a device.
    """

    def __init__(
        self,
        dry_run: DryRun,
        *,
        processes: int = 0,
        threads: int = _THREADS,
        around: Context = nullcontext,
    ) -> None:
        self._dry_run = dry_run
        self._processes = processes
        self._around = around
        self._pool = ThreadPoolExecutor(threads, "load")
        self._found = _Found()
        self._director = ThreadPoolExecutor(1, "dry-run")
        self._all: Future[None] | None = None
        self._compilers: Compilers | None = None
        self._is_dropped = threading.Event()
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
            self._is_dropped.set()
            if (compilers := self._compilers) is not None:
                compilers.kill()
            self._pool.shutdown(wait=False, cancel_futures=True)
        with self._stack:
            self._director.shutdown()
            self._pool.shutdown()

    @property
    def counts(self) -> tuple[int, int]:
        """How many kernels are loaded, and how many are known."""
        futures = list(self._found.futures)
        return sum(future.done() for future in futures), len(futures)

    def wait(self, tell: Callable[[int, int], None]) -> None:
        """Wait until all are loaded, calling `tell` with `counts` now and then. Raises a compiler's
        error."""
        assert self._all is not None, "compiling begins with `with`"
        while wait([self._all], _LOOK_EVERY_S).not_done:
            tell(*self.counts)
        tell(*self.counts)  # all of them, whatever happened since the last look
        self._all.result()

    def _run(self) -> None:
        with self._around(), AsyncCompileMode(self._found):  # leaving the mode waits for them
            try:
                self._dry_run(_compile)
                self._make_all(self._found.wanted())
            except BaseException as error:
                self._found.fail(error)
                raise

    def _make_all(self, wanted: list[_Pair]) -> None:
        """Load all, compiling first what is not in the cache. Processes are forked before a thread
        works on kernels: they would inherit locks that are never released. Threads that call the
        card's libraries may hold locks of these, which no fork asks for."""
        missing: list[_Pair] = []
        there: list[_Pair] = []
        for kernel, future in wanted:
            is_missing = self._processes > 0 and not kernel.is_cached
            (missing if is_missing else there).append((kernel, future))
        left = dict(enumerate(missing))
        forked = [Wanted(kernel.key, partial(_with_launcher, kernel)) for kernel, _ in missing]
        with Compilers(forked, self._processes) as self._compilers:
            for kernel, future in there:
                self._load(kernel, future)
            for i in self._compilers.done():
                self._load(*left.pop(i))
                if self._is_dropped.is_set():
                    break
        for kernel, future in left.values():
            self._load(kernel, future)

    def _load(self, kernel: Wanted, future: Future[Any]) -> None:
        loading = self._pool.submit(self._compile_and_load, kernel)
        loading.add_done_callback(partial(_pass_on, to=future))

    def _compile_and_load(self, kernel: Wanted) -> Any:
        """Also load it here: a launch would do so on the thread that launches first."""
        if self._is_dropped.is_set():
            raise _DroppedError
        with self._around():
            compiled = kernel.compile()
            _ = compiled.run
        return compiled


class _DroppedError(Exception):
    """The engine is not loaded after all."""


class _Found(Executor):
    """Takes from Triton what is to be compiled, and compiles nothing."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []
        self._compile: list[Callable[[], Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.futures.append(Future())
        self._compile.append(fn)
        return self.futures[-1]

    def wanted(self) -> list[_Pair]:
        """Triton notes each kernel's key at its future."""
        pairs = zip(self.futures, self._compile, strict=True)
        return [(Wanted(str(future._key), fn), future) for future, fn in pairs]  # type: ignore[attr-defined]

    def fail(self, error: BaseException) -> None:
        """All that will not be compiled any more."""
        for future in self.futures:
            if not future.done():
                future.set_exception(error)


def _pass_on(done: Future[Any], *, to: Future[Any]) -> None:
    if to.done():  # the dry run has failed meanwhile
        return
    if (error := done.exception()) is not None:
        to.set_exception(error)
    else:
        to.set_result(done.result())


def _with_launcher(kernel: Wanted) -> Any:
    """Also build what launches it, for which some versions call a C compiler."""
    compiled = kernel.compile()
    driver.active.launcher_cls(compiled.src, compiled.metadata)
    return compiled


def each_variant_once(take: Take) -> Take:
    """`take`, called only with the first launch of each variant. Triton 3.6 does not remember one
    whose compilation is pending, and would compute the cache key of every launch: half a second of
    Python."""
    taken: set[tuple[object, ...]] = set()

    def take_once(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        *_, bind = kernel.device_caches[driver.active.get_current_device()]
        _, specialisation, rest = bind(*map(MockTensor.wrap_dtype, arguments), **options)
        variant = (kernel, tuple(specialisation), str(rest))
        if variant not in taken:
            taken.add(variant)
            take(kernel, grid, *arguments, **options)

    return take_once


def _compile(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    kernel.warmup(*arguments, grid=grid, **options)


def processes_here(*, shared_by: int) -> int:
    """As many as there are cores for each of `shared_by` engines of one group."""
    cores = len(os.sched_getaffinity(0)) // shared_by
    return max(1, min(cores, MAX_PROCESSES))
