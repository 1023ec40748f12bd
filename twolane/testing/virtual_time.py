"""An asyncio event loop with a virtual clock: hours of timeouts pass in milliseconds, in order.

    with virtual_time_runner() as runner:
        runner.run(main())

`loop.time()` starts at 0 and advances only when every task waits; then it jumps to the next timer.
If every task waits and no timer is set, the program can never continue: `DeadlockError`.
Code that runs on it may use neither threads nor sockets, as these run in real time.

What `random` and `secrets` draw there follows from a seed.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import selectors
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock


class DeadlockError(AssertionError):
    """Every task waits, and no timer is set that could wake one."""


class _JumpingSelector(selectors.BaseSelector):
    """A selector that reports no I/O. Waiting t seconds advances the clock by t at once."""

    def __init__(self) -> None:
        self._keys: dict[Any, selectors.SelectorKey] = {}
        self.now_s = 0.0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, -1, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise DeadlockError("every task waits and no timer is set")
        self.now_s += max(0.0, timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See the module's docstring."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


@contextmanager
def virtual_time_runner(seed: int = 0) -> Iterator[asyncio.Runner]:
    """An `asyncio.Runner` on a fresh `VirtualTimeLoop`. Ids that are drawn follow from `seed`."""
    drawn = random.Random(f"secrets {seed}")  # other numbers than those of `random`
    before = random.getstate()
    random.seed(seed)
    try:
        with (
            # token_hex and token_urlsafe draw by token_bytes.
            mock.patch.multiple(secrets, token_bytes=drawn.randbytes, randbits=drawn.getrandbits),
            asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
        ):
            yield runner
    finally:
        random.setstate(before)
