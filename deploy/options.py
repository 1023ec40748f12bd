"""Options, as the flags of a command. Each is declared once, as a field of what it sets:

    twolane.engine.config.EngineConfig               an engine
    twolane.deploy.spec.ModelSpec, WorkerSettings    a worker beside it: its steps and transports
    twolane.deploy.spec.RouterSettings               a router
    twolane.deploy.spec.TimingSpec, ClusterSettings  all of a cluster

From there come its flag (here), its key in a topology (`twolane.deploy.topology`), what is usual in
both, and its way to whoever reads the field.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from twolane.options import Option

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Declared:
    """An option and the field that declares it. `usual` is what holds where nobody says; None:
    whoever enforces it knows."""

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
    """The fields of `kind` that are options: as `said` by key, else as they usually are."""
    return {each.field: said.get(each.key, each.usual) for each in declared(kind)}


def flags(
    *kinds: type, leave_out: Collection[str] = (), **usual: Any
) -> Callable[[CommandT], CommandT]:
    """A decorator that gives a command the options of `kinds`, but for the keys `leave_out`.
    `usual` are defaults that are other ones here, by key."""
    chosen = [each for each in declared(*kinds) if each.key not in leave_out]

    def decorate(command: CommandT) -> CommandT:
        for each in reversed(chosen):
            command = _flag(each, usual.get(each.key))(command)
        return command

    return decorate


def said(context: click.Context) -> dict[str, Any]:
    """What was given to a command. Options that nobody gave say nothing."""
    unsaid = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    return {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) not in unsaid
    }


def _flag(each: Declared, usual: Any) -> Callable[[CommandT], CommandT]:
    """With another default than is `usual` for it, where that is not None."""
    help, in_words, _ = each.option.help.partition("  [default:")
    is_told = bool(in_words) and usual is None
    usual = each.usual if usual is None else usual
    facts: dict[str, Any] = {
        "help": (each.option.help if is_told else help) or None,
        "metavar": each.option.metavar,
        "default": None if is_told else usual,
        "show_default": not is_told and usual not in (None, False),
    }
    flag = each.flag
    if each.hint is bool and each.may_be_none:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    elif each.hint is bool:
        facts["is_flag"] = True
    else:
        facts["type"] = _type(each)
        facts["multiple"] = get_origin(each.hint) is tuple
    return click.option(each.key, flag, **facts)


def _type(each: Declared) -> Any:
    option = each.option
    if option.choices:
        return click.Choice(option.choices)
    if each.hint is int:
        return click.IntRange(option.least, option.most)  # type: ignore[arg-type]
    if each.hint is float:
        least = option.least if option.above is None else option.above
        return click.FloatRange(least, option.most, min_open=option.above is not None)
    return str
