"""The options that dataclasses declare. Each is declared once, as a field of the config it sets:

    twolane.engine.config.EngineConfig                 an engine
    twolane.deploy.spec.settings
        ModelSpec, WorkerSettings                      a worker beside it: its steps and transports
        RouterSettings                                 a router
        TimingSpec, ClusterSettings                    all of a cluster

From the field are derived its flag (`twolane.deploy.cli.flags`), its key in a topology
(`twolane.deploy.spec.topology`), and the default of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, get_args, get_type_hints

from twolane.options import Option


@dataclass(frozen=True, slots=True)
class Declared:
    """An option and the field that declares it. `usual` is its default; None: that of the component
    that the option configures."""

    field: str
    hint: Any  # its type without None
    may_be_none: bool
    usual: Any
    option: Option

    @property
    def key(self) -> str:
        """Its name in a topology."""
        return self.option.name or self.field

    @property
    def flag(self) -> str:
        return self.option.flag or f"--{self.key.replace('_', '-')}"


def declared(*kinds: type) -> Iterator[Declared]:
    """The options among the fields of these dataclasses, in order."""
    for kind in kinds:
        hints = get_type_hints(kind)
        for field in fields(kind):
            if "option" not in field.metadata:
                continue
            option: Option = field.metadata["option"]
            hint = hints[field.name]
            arms = [arm for arm in get_args(hint) if arm is not NoneType]
            may_be_none = NoneType in get_args(hint)
            usual = field.default if option.usual is None else option.usual
            yield Declared(field.name, arms[0] if may_be_none else hint, may_be_none, usual, option)


def settings(kind: type, said: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for `kind`, by field: each option from `said`, by key, or else its default."""
    return {each.field: said.get(each.key, each.usual) for each in declared(kind)}
