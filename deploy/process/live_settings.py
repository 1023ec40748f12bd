"""The options of a router process as operators see and set them, by the names that they have in a
topology: router.max_queued, timing.suspicion_s, log_level.

Which may change while it runs is declared with each option (`is_live`). A change makes another
spec, so it is checked as at a start, and another `RouterConfig` of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from twolane.deploy.process.compose_router import router_config
from twolane.deploy.spec.declared_options import declared
from twolane.deploy.spec.live_options import NamedOption, by_name, read_live, shown
from twolane.deploy.spec.settings import ClusterSettings, RouterSettings, TimingSpec
from twolane.deploy.spec.specs import RouterSpec
from twolane.errors import InvalidRequestError, PreconditionError
from twolane.router.config import RouterConfig
from twolane.security.key_file import KeyFile
from twolane.security.keys import KeyFileError, read_keys
from twolane.v1 import cluster_pb2

_GROUPS: tuple[tuple[str, type], ...] = (
    ("router", RouterSettings),
    ("timing", TimingSpec),
    ("", ClusterSettings),
)


class LiveSettings:
    """Implements `twolane.router.operators.configuration.Options`. `configure` makes another
    `RouterConfig` hold; `keys` is the router's file of API keys."""

    def __init__(
        self,
        spec: RouterSpec,
        keys: KeyFile | None,
        configure: Callable[[RouterConfig], None],
    ) -> None:
        self._spec = spec
        self._configure = configure
        self._keys = keys
        self._options = by_name(_options(spec))

    def fields(self, set: Mapping[str, str]) -> list[cluster_pb2.ConfigField]:
        spec = self._with(set)
        return [
            shown(
                option,
                _value(option, spec),
                live=option.its.option.is_live,
                is_set=option.name in set,
            )
            for option in self._options.values()
        ]

    def plan(self, set: Mapping[str, str]) -> Callable[[], None]:
        spec = self._with(set)
        config = replace(router_config(spec), epoch=0)

        def act() -> None:
            self._configure(config)
            logging.getLogger("twolane").setLevel(spec.log_level.upper())

        return act

    def plan_reload(self) -> Callable[[], None]:
        keys = self._keys
        if keys is None:
            return lambda: None
        try:
            read_keys(keys.path)
        except KeyFileError as error:
            raise PreconditionError(str(error)) from error
        return lambda: None  # the router reads it by itself, as soon as it has changed

    def _with(self, set: Mapping[str, str]) -> RouterSpec:
        """The spec with these values. Raises as `plan`."""
        parts: dict[str, dict[str, Any]] = {group: {} for group, _ in _GROUPS}
        for name, text in set.items():
            value = read_live(self._options, name, text)
            option = self._options[name]
            parts[option.group][option.its.field] = value
        spec = self._spec
        try:
            return replace(
                spec,
                settings=replace(spec.settings, **parts["router"]),
                timing=replace(spec.timing, **parts["timing"]),
                **parts[""],
            )
        except ValueError as error:
            raise InvalidRequestError(str(error), field=", ".join(set)) from error


def _value(option: NamedOption, spec: RouterSpec) -> Any:
    parts = {"router": spec.settings, "timing": spec.timing, "": spec}
    return getattr(parts[option.group], option.its.field)


def _options(spec: RouterSpec) -> Iterator[NamedOption]:
    of_spec = {field.name for field in fields(spec)} - {"model"}
    for group, kind in _GROUPS:
        for its in declared(kind):
            if group or its.field in of_spec:
                yield NamedOption(group, its)
