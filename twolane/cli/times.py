"""Times on the command line: how long something takes, lasts, or is ago."""

from __future__ import annotations

import math

import click

from twolane.params import MAX_INT

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _checked(text: str, unit_s: float) -> float | None:
    """The seconds; None: that is no time. Longer ones do not fit into a call's deadline."""
    try:
        found = float(text) * unit_s
    except ValueError:
        return None
    return found if math.isfinite(found) and 0 <= found <= MAX_INT else None


class Seconds(click.ParamType[float]):
    """A number of seconds, like 90 or 0.5."""

    name = "float"

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> float:
        found = _checked(str(value), 1.0)
        if found is None:
            text = f"{str(value)!r} is not a number of seconds, 0 to {MAX_INT}"
            self.fail(text, parameter, context)
        return found


class Duration(click.ParamType[float]):
    """A duration like 90, 90s, 10m, 2h or 1d, in seconds."""

    name = "duration"

    def __init__(self, least_s: float = 0.0) -> None:
        self._least_s = least_s

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> float:
        text = str(value)
        unit_s = _UNITS.get(text[-1:])
        found = _checked(text[:-1], unit_s) if unit_s else _checked(text, 1.0)
        if found is None or found < self._least_s:
            bounds = f"{self._least_s:g} to {MAX_INT} s"
            words = f"{text!r} is not a duration like 90s, 10m, 2h or 1d, of {bounds}"
            self.fail(words, parameter, context)
        return found
