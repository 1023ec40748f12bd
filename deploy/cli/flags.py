"""Builds click options from the options that dataclasses declare."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar, get_origin

import click
from click.core import ParameterSource

from twolane.deploy.spec.declared_options import Declared, declared

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def flags(
    *kinds: type, leave_out: Collection[str] = (), **usual: Any
) -> Callable[[CommandT], CommandT]:
    """A decorator that adds the options of the dataclasses `kinds` to a command, except the keys in
    `leave_out`. `usual` overrides defaults by key."""
    chosen = [each for each in declared(*kinds) if each.key not in leave_out]

    def decorate(command: CommandT) -> CommandT:
        for each in reversed(chosen):
            command = _flag(each, usual.get(each.key))(command)
        return command

    return decorate


def said(context: click.Context) -> dict[str, Any]:
    """The options that the user set, by name, without defaults."""
    unsaid = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    return {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) not in unsaid
    }


def _flag(each: Declared, usual: Any) -> Callable[[CommandT], CommandT]:
    """The click option of a declared option. `usual` overrides its default unless it is None."""
    help, default_text, _ = each.option.help.partition("  [default:")
    default_is_in_help = bool(default_text) and usual is None
    usual = each.usual if usual is None else usual
    if usual is None and each.option.stands_for is not None:
        help = f"{help}  [default: {each.option.stands_for}]"
    facts: dict[str, Any] = {
        "help": (each.option.help if default_is_in_help else help) or None,
        "metavar": each.option.metavar,
        "default": None if default_is_in_help else usual,
        "show_default": not default_is_in_help and usual not in (None, False),
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
