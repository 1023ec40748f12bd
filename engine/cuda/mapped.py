"""The pools of ranks (separate processes), mapped into their worker's process."""

from __future__ import annotations

from collections.abc import Sequence

from twolane.engine.cuda.driver import Context, close_memory, open_memory
from twolane.engine.step import DevicePool


class MappedPools:
    """One part per rank, in rank order, mapped for the first visible device, which is rank 0's.
    Raises `CudaError` if a card cannot access another's memory; then nothing is mapped.

    The ranks free them, after `close` has been called.
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
        """No copy may be in flight. May be called twice."""
        mapped, self._addresses = self._addresses, []
        self._context.enter()
        for exported, address in zip(self._exports, mapped, strict=False):
            close_memory(exported, address)
