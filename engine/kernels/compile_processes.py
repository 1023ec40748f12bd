"""Compiles kernels in forked processes into Triton's cache, each kernel once on a machine.

    this process   fork, fork, ...        reads which are done, and loads them from the cache
    each fork      take a kernel -> lock it -> compile -> tell -> take another ... -> end
                                     | locked by another worker's process: last, once it is free

Threads do not compile in parallel for long: each waits for the interpreter lock at every file that
it opens and every process that it starts. A fork has a lock of its own, and all the modules. It
never touches the card, and ends without telling anyone if its parent has ended.
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import os
import select
import signal
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from triton.runtime.cache import get_cache_manager

_INDEX = struct.Struct("i")
_MOST = 1024  # a pipe holds at least so many of `_INDEX`: a page
SILENT_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """A kernel: its key in Triton's cache, and what compiles it into the cache."""

    key: str
    compile: Callable[[], Any]

    @property
    def is_cached(self) -> bool:
        """Also true where the cache is not made of local folders: then we cannot see."""
        folder = getattr(_cache_of(self.key), "cache_dir", None)
        return folder is None or any(Path(folder).glob("__grp__*"))


class Compilers:
    """Within `with`, up to `n` processes compile. Leaving it ends those that are left."""

    def __init__(self, wanted: Sequence[Wanted], n: int) -> None:
        self._wanted = wanted[:_MOST]
        self._n = min(n, len(self._wanted))
        self._done_fd = -1
        self.pids: list[int] = []

    def __enter__(self) -> Compilers:
        todo_fd, write_todo_fd = os.pipe()
        self._done_fd, write_done_fd = os.pipe()
        try:
            for i in range(len(self._wanted)):
                os.write(write_todo_fd, _INDEX.pack(i))
            parent = os.getpid()
            for _ in range(self._n):
                with suppress(OSError):  # too little memory for one more
                    if not (pid := _fork()):
                        unused = write_todo_fd, self._done_fd
                        _run_fork(self._wanted, todo_fd, write_done_fd, unused, parent)
                    self.pids.append(pid)
        finally:
            for fd in (todo_fd, write_todo_fd, write_done_fd):
                os.close(fd)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        while self.pids:
            with suppress(ChildProcessError):
                os.waitpid(self.pids.pop(), 0)
        os.close(self._done_fd)

    def kill(self) -> None:
        """End all processes now. Another thread may do so."""
        for pid in list(self.pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def done(self, silent_after_s: float = SILENT_AFTER_S) -> Iterator[int]:
        """The index of each kernel that is in the cache now, until all processes have ended or none
        has told anything for so long. What is missing then could not be compiled."""
        while select.select([self._done_fd], [], [], silent_after_s)[0]:
            told = os.read(self._done_fd, _INDEX.size * _MOST)
            if not told:
                return
            for (i,) in _INDEX.iter_unpack(told):
                yield i


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        return os.fork()


def _run_fork(
    wanted: Sequence[Wanted], todo_fd: int, done_fd: int, unused: Sequence[int], parent: int
) -> NoReturn:
    """Compile what no other process compiles, then see to the rest."""
    code = 1
    try:
        for fd in unused:
            os.close(fd)  # else `todo_fd` would never end
        signal.set_wakeup_fd(-1)  # the parent's
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        gc.freeze()
        later: list[int] = []
        while len(index := os.read(todo_fd, _INDEX.size)) == _INDEX.size:
            (i,) = _INDEX.unpack(index)
            if not _compile(wanted[i], i, done_fd, parent, wait=False):
                later.append(i)
        for i in later:
            _compile(wanted[i], i, done_fd, parent, wait=True)
        code = 0
    finally:
        os._exit(code)  # no handler and no destructor of the parent's runs here


def _compile(wanted: Wanted, i: int, done_fd: int, parent: int, *, wait: bool) -> bool:
    """False if another process compiles it now. An error is met again by the parent, which then
    compiles it itself."""
    if os.getppid() != parent:
        raise SystemExit
    with _locked(wanted.key, wait=wait) as is_ours:
        if is_ours:
            with suppress(Exception):
                if not wanted.is_cached:
                    wanted.compile()
                os.write(done_fd, _INDEX.pack(i))
    return is_ours


@contextmanager
def _locked(key: str, *, wait: bool) -> Iterator[bool]:
    """Whether the kernel is ours to compile: no other process of this machine has its lock."""
    with open(_cache_of(key).lock_path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        except OSError:  # a file system without locks: two may compile the same
            pass
        yield True


def _cache_of(key: str) -> Any:
    return get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
