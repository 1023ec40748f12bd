"""The settings that operators change while the cluster runs: all routers at once, or none.

    prepare(r + 1)   every router checks the change, and holds it ready
    keep             the controller saves it, for routers that start later
    apply(r + 1)     it holds; `forget` where a router has refused

A router that has missed a change, or starts later, takes the kept settings with the controller's
next call.

Some settings are the controller's own: it checks and applies them itself when it is to keep them,
and tells of them with each call. Routers show them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from twolane.errors import PreconditionError, TwolaneError
from twolane.router.operators.event_log import EventLog
from twolane.v1 import cluster_pb2

READY_S = 30.0  # so long a change that was prepared keeps others out


class Options(Protocol):
    """The options that this process was started with, which deploy declares. Values are JSON, by
    name: those that operators have `set`."""

    def fields(self, set: Mapping[str, str]) -> list[cluster_pb2.ConfigField]:
        """Every option that this process knows."""
        ...

    def plan(self, set: Mapping[str, str]) -> Callable[[], None]:
        """What makes these hold. Raises `InvalidRequestError` for a wrong name or value, and
        `PreconditionError` for an option that needs a restart, with the line to type."""
        ...

    def plan_reload(self) -> Callable[[], None]:
        """What reads the files again that may change. Raises `PreconditionError`."""
        ...


class NoOptions:
    """Of a router that was started from Python, with a config."""

    def fields(self, set: Mapping[str, str]) -> list[cluster_pb2.ConfigField]:
        return []

    def plan(self, set: Mapping[str, str]) -> Callable[[], None]:
        raise PreconditionError("this router was started with a config, and has no options")

    def plan_reload(self) -> Callable[[], None]:
        return lambda: None


@dataclass(frozen=True, slots=True)
class _Ready:
    revision: int
    values: Mapping[str, str]
    asked: Mapping[str, str]
    act: Callable[[], None] = field(compare=False)
    who: str
    until: float


class Configuration:
    """Of one router. It reads no clock: the caller passes `now`, in seconds."""

    def __init__(self, events: EventLog) -> None:
        self.options: Options = NoOptions()
        self.revision = 0
        self.values: Mapping[str, str] = {}  # that operators have set
        self._told: Mapping[str, str] = {}  # the same as controllers keep it, with what we refused
        self._controllers: Mapping[str, cluster_pb2.ConfigField] = {}  # its own, as told last
        self._ignored: frozenset[str] = frozenset()  # kept for routers of another version
        self._events = events
        self._ready: _Ready | None = None

    def changed(self, values: Mapping[str, str]) -> dict[str, str]:
        """All that operators will have set, with these."""
        return {**self.values, **values}

    def is_controllers(self, name: str) -> bool:
        """Whether a controller has told that this setting is its own."""
        return name in self._controllers

    @property
    def knows_controllers(self) -> bool:
        """Whether a controller has told of its own settings."""
        return bool(self._controllers)

    def prepare(self, request: cluster_pb2.PrepareConfigRequest, now: float) -> None:
        """Check a change and hold it ready. Raises `PreconditionError` if another was faster, and
        as `Options.plan`."""
        ready = self._ready
        if request.revision != self.revision + 1:
            raise PreconditionError(
                f"the configuration is at revision {self.revision} here, not "
                f"{request.revision - 1}: look again, then try again"
            )
        if ready is not None and now < ready.until:
            raise PreconditionError(f"{ready.who} changes the configuration now: try again")
        values = self.changed(request.values)
        act = self.options.plan_reload() if request.reload else self._plan(values, request.values)
        names = dict(request.values)
        self._ready = _Ready(request.revision, values, names, act, request.who, now + READY_S)

    def apply(self, revision: int) -> None:
        """Make a change hold that was prepared. Raises `PreconditionError` if it was not."""
        if revision == self.revision:
            return  # a controller has told of it already
        ready, self._ready = self._ready, None
        if ready is None or ready.revision != revision:
            raise PreconditionError(f"revision {revision} was not prepared here")
        ready.act()
        self.revision, self.values = revision, ready.values
        self._told = {**self._told, **ready.asked}

    def forget(self, revision: int) -> None:
        """What was prepared does not happen. May be called twice."""
        if self._ready is not None and self._ready.revision == revision:
            self._ready = None

    def hold(self, kept: cluster_pb2.ConfigState) -> None:
        """A controller tells what it has kept. What is newer than ours holds from now on."""
        if kept.controllers:  # one of an older version tells of none: they stay its own
            self._controllers = {its.name: its for its in kept.controllers}
        if kept.revision <= self.revision:
            return
        values, ready = dict(kept.values), self._ready
        if (
            ready is not None
            and ready.revision == kept.revision
            and {**self._told, **ready.asked} == values
        ):
            self.apply(kept.revision)  # a change is between its two rounds
            return
        self._told = values
        known = {its.name for its in self.fields(())}
        self._ignored = frozenset(values.keys() - known)
        if self._ignored:
            text = f"settings of another version are ignored: {', '.join(sorted(self._ignored))}"
            self._events.note("config.ignored", "config", text)
        try:
            self._plan(values)()
        except TwolaneError as error:  # a value of another version
            text = f"the kept configuration does not fit this router: {error.message}"
            self._events.note("config.refused", "config", text)
        else:
            named = ", ".join(
                f"{name} {value}" for name, value in sorted(values.items()) if name in known
            )
            text = f"revision {kept.revision} of the configuration holds: {named}"
            self._events.note("config.taken", "config", text)
            self.values = values
        self.revision, self._ready = kept.revision, None

    def fields(self, names: Collection[str]) -> list[cluster_pb2.ConfigField]:
        """The options of these names, or whose names begin so; none: all."""
        found = [*self.options.fields(self._own(self.values)), *self._controllers.values()]
        return [
            its
            for its in found
            if not names or any(its.name == name or its.name.startswith(name) for name in names)
        ]

    def _plan(self, values: Mapping[str, str], asked: Collection[str] = ()) -> Callable[[], None]:
        """What an operator has `asked` for is never ignored."""
        return self.options.plan(self._own(values, asked))

    def _own(self, values: Mapping[str, str], asked: Collection[str] = ()) -> dict[str, str]:
        """Those that are neither the controller's nor another version's."""
        ignored = self._ignored.difference(asked)
        return {
            name: its
            for name, its in values.items()
            if name not in ignored and not self.is_controllers(name)
        }
