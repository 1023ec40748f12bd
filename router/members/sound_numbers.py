"""What numbers of a worker must be: it is not trusted to send only what can be computed with."""

from __future__ import annotations

import math

from google.protobuf.message import Message

from twolane.errors import InvalidParameterError
from twolane.v1 import worker_pb2

_MOST_SUMMED = 1 << 56  # so that those of 128 attempts fit into 64 bits


def check_load(load: worker_pb2.LoadReport) -> None:
    """Every number is finite and not negative. Raises `InvalidParameterError`, which names the
    first that is not."""
    _check(load, "", math.inf)


def check_figures(figures: worker_pb2.RowFigures) -> None:
    """As `check_load`; those of several attempts can be added, too."""
    _check(figures, "", _MOST_SUMMED)


def _check(message: Message, path: str, most: float) -> None:
    for field, value in message.ListFields():
        name = f"{path}{field.name}"
        if isinstance(value, Message):
            _check(value, f"{name}.", most)
        elif isinstance(value, int | float) and not 0 <= value < most:
            raise InvalidParameterError(name, value, f"a number from 0 on, below {most:g}")
