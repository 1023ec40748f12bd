"""What KV transfers need of their worker's page allocator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class PageAuthority(Protocol):
    """`twolane.engine.allocator.PageAllocator`, seen from here: page ids are its handles.

    Handles are typed `Any` because the engine's page type is opaque to this package.
    """

    n_pages: int

    def try_take(self, n: int) -> list[Any] | None: ...

    def release(self, pages: Sequence[Any]) -> None: ...

    def pin(self, pages: Sequence[Any]) -> None: ...

    def unpin(self, pages: Sequence[Any]) -> None: ...

    def quarantine(self, pages: Sequence[Any]) -> None: ...

    def absolve(self, pages: Sequence[Any]) -> None: ...

    def match(self, chain_hashes: Sequence[bytes]) -> list[Any]: ...

    def publish(self, page: Any, chain_hash: bytes) -> bool: ...
