"""How far the start of an engine has come: first it is loaded, then made ready."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

PASSES = "passes"


class Loaded(NamedTuple):
    """Of one rank. Bytes are those of the parameters in memory, whatever their files take."""

    tensors: int
    of_tensors: int
    n_bytes: int
    of_bytes: int

    @property
    def is_last(self) -> bool:
        return self.tensors == self.of_tensors


class Readied(NamedTuple):
    """Of one rank, once it is loaded: "kernels" that are compiled, then "passes" made."""

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
