"""Memory for a page pool that processes of the same user on the same host can map (shm transport).

A memfd, reached by others as /proc/PID/fd/N: it has no name in /dev/shm to leave behind, whatever
kills the process, and it does not count against a container's small /dev/shm.
"""

from __future__ import annotations

import mmap
import os
import re

import numpy as np
import numpy.typing as npt

_ADDRESS = re.compile(r"(/proc/[0-9]+/fd/[0-9]+):([0-9]{1,20}):([1-9][0-9]{0,18})")


class PoolMemory:
    """Shared memory of one pool. `array` is flat uint8; our own child processes map `fd`; `close`
    unmaps it here."""

    def __init__(self, nbytes: int, name: str) -> None:
        self.nbytes = nbytes
        self.fd = os.memfd_create(f"twolane-{name}", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(self.fd, 0, nbytes)  # out of memory shows here, not as SIGBUS later
            self._map: mmap.mmap | None = mmap.mmap(self.fd, nbytes)
        except OSError:
            os.close(self.fd)
            raise
        inode = os.fstat(self.fd).st_ino
        self.address = f"/proc/{os.getpid()}/fd/{self.fd}:{inode}:{nbytes}"

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """All of the memory, writable, without a copy. Valid while the array is referenced."""
        assert self._map is not None, "closed"
        return np.frombuffer(self._map, dtype=np.uint8)

    def close(self) -> None:
        """Close the file descriptor; the memory is freed with the last array and mapping."""
        if self._map is not None:
            self._map = None  # arrays keep their own reference to the mapping
            os.close(self.fd)


def map_peer_memory(address: str) -> npt.NDArray[np.uint8]:
    """Another process's pool memory, flat and writable, by its `PoolMemory.address`.

    Raises OSError when that process is gone, or the address does not lead to that memory.
    """
    parts = _ADDRESS.fullmatch(address)
    if parts is None:
        raise OSError(f"no address of a pool: {address[:80]!r}")
    path, inode, nbytes = parts[1], int(parts[2]), int(parts[3])
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if (found.st_ino, found.st_size) != (inode, nbytes):
            raise FileNotFoundError(f"{path} is not the pool that was announced")
        return np.frombuffer(mmap.mmap(fd, nbytes), dtype=np.uint8)
    finally:
        os.close(fd)


def create_pool_memory(nbytes: int, name: str) -> PoolMemory:
    """Zeroed shared memory for a pool. Raises OSError when there is not enough."""
    return PoolMemory(nbytes, name)
