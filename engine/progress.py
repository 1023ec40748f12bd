"""How far the loading of a model has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Loaded(NamedTuple):
    """Of one rank. Bytes are those of the parameters in memory, whatever their files take."""

    tensors: int
    of_tensors: int
    n_bytes: int
    of_bytes: int


Progress = Callable[[Loaded], None]
