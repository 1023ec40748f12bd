"""What a load report must be: a worker is not trusted to send numbers that can be computed with."""

from __future__ import annotations

import math

from google.protobuf.message import Message

from twolane.errors import InvalidParameterError
from twolane.v1 import worker_pb2


def check_load(load: worker_pb2.LoadReport) -> None:
    """Every number is finite and not negative. Raises `InvalidParameterError`, which names the
    first that is not."""
    _check(load, "")


def _check(message: Message, path: str) -> None:
    for field, value in message.ListFields():
        name = f"{path}{field.name}"
        if isinstance(value, Message):
            _check(value, f"{name}.")
        elif isinstance(value, int | float) and not 0 <= value < math.inf:
            raise InvalidParameterError(name, value, "a number from 0 on")
