"""Options as operators see and set them while a cluster runs: by the names that they have in a
topology, router.max_queued or scaler.budget, with values in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from twolane.deploy.spec.declared_options import Declared
from twolane.deploy.spec.topology import OPTIONS, type_of
from twolane.errors import InvalidRequestError, PreconditionError
from twolane.v1 import cluster_pb2

SCALER = "scaler"  # the group of the controller's own
_SECRET = "(secret)"


@dataclass(frozen=True, slots=True)
class NamedOption:
    """An option of a running process. `group` is its part of the topology; empty: the whole."""

    group: str
    its: Declared

    @property
    def name(self) -> str:
        return f"{self.group}.{self.its.key}" if self.group else self.its.key


def by_name(options: Iterable[NamedOption]) -> dict[str, NamedOption]:
    return {option.name: option for option in options}


def read_live(options: Mapping[str, NamedOption], name: str, text: str) -> Any:
    """The value of one that may change while the cluster runs; `null` is its default. Raises
    `InvalidRequestError` for a wrong name or value, and `PreconditionError` for an option that
    needs a restart, with the line to type."""
    option = options.get(name)
    if option is None:
        raise _unknown(name, options)
    its = option.its
    if not its.option.is_live:
        raise PreconditionError(
            f"{name} needs a restart: twolane down, then twolane up … {its.flag} {_word(text)}",
            metadata={"field": name},
        )
    try:
        value = json.loads(text)
        if value is None:
            return its.usual
        return TypeAdapter(type_of(its)).validate_python(value, strict=True)
    except json.JSONDecodeError as error:
        raise InvalidRequestError(f"{name}: {text!r} is no JSON", field=name) from error
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise InvalidRequestError(
            f"{name} is {text}: {why[0].lower()}{why[1:]}", field=name
        ) from error


def shown(option: NamedOption, value: Any, *, live: bool, is_set: bool) -> cluster_pb2.ConfigField:
    """`is_set`: an operator has set it."""
    its = option.its
    is_shown = not its.option.is_secret or value is None
    source = "operator" if is_set else "default" if value == its.usual else "file"

    def in_json(value: Any) -> str:
        return json.dumps(its.option.stands_for if value is None else value)

    return cluster_pb2.ConfigField(
        name=option.name,
        value=in_json(value if is_shown else _SECRET),
        default=in_json(its.usual),
        live=live,
        source=source,
    )


def _unknown(name: str, known: Iterable[str]) -> Exception:
    """Of a name that is not among these: a part of one, another process's option, or none."""
    group, _, key = name.rpartition(".")
    whole = [its for its in known if its.rpartition(".")[2] == key]
    if whole:
        return InvalidRequestError(
            f"there is no setting {name!r}: {' or '.join(whole)} is meant", field="values"
        )
    its = OPTIONS.get(key)
    if its is None:
        return InvalidRequestError(
            f"there is no setting {name!r}: `twolane config get` lists them", field="values"
        )
    if its.option.is_live and group == SCALER:
        return PreconditionError(
            f"{name} is the controller's, and this router has not heard it yet",
            metadata={"field": name},
        )
    return PreconditionError(
        f"{name} is not of routers, and needs a restart: {its.flag} of twolane up, or "
        f"{its.key}: in the topology",
        metadata={"field": name},
    )


def _word(text: str) -> str:
    """A JSON value as one types it."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return text
    return value if isinstance(value, str) else text
