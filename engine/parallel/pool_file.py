"""Memory shared by all ranks on a CPU: an anonymous file, which each of them maps.

    | page 0: rank 0, rank 1, ... | page 1: rank 0, rank 1, ... |

So a page of the group is one run of bytes, and each rank writes its part of it.
"""

from __future__ import annotations

import mmap
import os

import numpy as np

from twolane.engine.step import ByteArray


class PoolFile:
    """The group's end. With `fd` and `memory`, the caller owns the file and has mapped it there;
    otherwise it is new, and empty until the ranks grow it."""

    def __init__(self, fd: int | None = None, memory: memoryview | None = None) -> None:
        self.fd = os.memfd_create("twolane-ranks") if fd is None else os.dup(fd)
        self._memory = memory
        self._is_open = True

    def pages(self, n_pages: int, page_bytes: int) -> ByteArray:
        """`[n_pages, page_bytes]`, writable; empty if the ranks' pages are not in the file."""
        n_bytes = n_pages * page_bytes
        if os.fstat(self.fd).st_size < n_bytes:
            return np.zeros((0, page_bytes), np.uint8)
        memory = mmap.mmap(self.fd, n_bytes) if self._memory is None else self._memory
        return np.frombuffer(memory, np.uint8, n_bytes).reshape(n_pages, page_bytes)

    def close(self) -> None:
        """Close the file, but not the pages. May be called twice."""
        if self._is_open:
            self._is_open = False
            os.close(self.fd)


def map_pool(fd: int, n_bytes: int) -> memoryview:
    """A rank's end: maps the whole file, writable. Raises OSError if there is no space for it."""
    os.posix_fallocate(fd, 0, n_bytes)
    return memoryview(mmap.mmap(fd, n_bytes))
