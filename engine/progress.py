"""Progress of starting an engine: first it is loaded, then warmed up."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

PASSES = "passes"


class Loaded(NamedTuple):
    """Of one rank. Bytes count the parameters in memory, whatever the size of their files."""

    tensors: int
    of_tensors: int
    n_bytes: int
    of_bytes: int

    @property
    def is_last(self) -> bool:
        return self.tensors == self.of_tensors


class Readied(NamedTuple):
    """Of one rank, after loading: compiled "kernels", then warm-up "passes"."""

    what: str
    done: int
    of: int

    @property
    def is_last(self) -> bool:
        return self.what == PASSES and self.done == self.of


PROGRESS: dict[str, type[Loaded] | type[Readied]] = {
    kind.__name__: kind for kind in (Loaded, Readied)
}
Progress = Callable[[Loaded | Readied], None]
