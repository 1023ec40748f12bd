"""Pools of ranks, which are processes of their own, mapped in the process of their worker."""

from __future__ import annotations

from collections.abc import Sequence

from twolane.engine.cuda.driver import Context, close_memory, open_memory
from twolane.engine.step import DevicePool


class MappedPools:
    """One part a rank, in their order, within reach of the first device that is seen here: that of
    rank 0. Raises `CudaError` where a card cannot reach another's memory; then nothing is mapped.

    They are the ranks' to free, once `close` has been called.
    """

    def __init__(self, exports: Sequence[bytes], n_bytes: int) -> None:
        self._exports = tuple(exports)
        self._context = Context(0)
        self._addresses: list[int] = []
        self._context.enter()
        try:
            for exported in exports:
                self._addresses.append(open_memory(exported))
        except BaseException:
            self.close()
            raise
        self.pool = DevicePool(0, tuple(self._addresses), n_bytes, self._exports)

    def close(self) -> None:
        """No copy may be under way. Twice is fine."""
        mapped, self._addresses = self._addresses, []
        self._context.enter()
        for exported, address in zip(self._exports, mapped, strict=False):
            close_memory(exported, address)
