"""Options of a router that take every name but `bad`, and write down what holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twolane.errors import InvalidRequestError, PreconditionError
from twolane.v1 import cluster_pb2


class Written:
    """`held` is what holds, as it was set. `refused` is a name that this router cannot take, or
    why it cannot read its files. `fields_as` are values that it shows instead."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}
        self.reloads = 0
        self.refused = ""
        self.fields_as: dict[str, str] = {}

    def fields(self, set: Mapping[str, str]) -> list[cluster_pb2.ConfigField]:
        shown = {**dict.fromkeys(("limits.a", "limits.b", "other"), "0"), **set, **self.fields_as}
        return [
            cluster_pb2.ConfigField(name=name, value=value, live=True)
            for name, value in shown.items()
        ]

    def plan(self, set: Mapping[str, str]) -> Callable[[], None]:
        if "bad" in set:
            raise InvalidRequestError("there is no setting 'bad'", field="values")
        if self.refused in set:
            raise PreconditionError(f"{self.refused} is not for this router")

        def act() -> None:
            self.held = dict(set)

        return act

    def plan_reload(self) -> Callable[[], None]:
        if self.refused:
            raise PreconditionError(f"{self.refused} cannot be read")

        def act() -> None:
            self.reloads += 1

        return act
