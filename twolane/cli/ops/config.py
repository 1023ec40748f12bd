"""`twolane config`: shows the cluster's settings, and changes those that are live."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import click
from rich.text import Text

from twolane.cli.common import json_option, operator, operator_option
from twolane.cli.ops.acting import act_options, new_act
from twolane.cli.ops.changing import change
from twolane.cli.ops.output import count, missing, print_message, quiet_option, show
from twolane.cli.rows import Rows
from twolane.errors import InvalidParameterError, InvalidRequestError
from twolane.params import MAX_INT
from twolane.v1 import admin_pb2, cluster_pb2

_OFF = 1  # exit code: routers do not agree


@click.group()
def config() -> None:
    """Show the cluster's settings, and change those that are live."""


@config.command("get")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--live", is_flag=True, help="Only settings that may change while it runs.")
@quiet_option
@json_option
@operator_option
def get(
    names: Sequence[str], *, live: bool, quiet: bool, as_json: bool, endpoint: str | None
) -> None:
    """Show settings of the cluster: all, or those whose names begin with NAME.

    A value is from the default, from the start (the options or the topology of `twolane up`), or
    from an operator.
    """
    with operator(endpoint) as admin:
        found = admin.call("GetConfig", admin_pb2.GetConfigRequest(names=names))
    wrong = [name for name in names if not any(its.name.startswith(name) for its in found.fields)]
    if wrong and not found.without_controllers:
        text = f"no setting begins with {', '.join(wrong)}: `twolane config get` lists them"
        raise InvalidRequestError(text, field="NAME")
    _keep_only(found, lambda its: its.live or not live)
    if as_json:
        print_message(found)
    elif quiet:
        for its in found.fields:
            click.echo(its.name)
    else:
        show(_so_what(found), _table(found), *_untold(found, names), *missing(found.unreached))


@config.command("diff")
@json_option
@operator_option
def diff(*, as_json: bool, endpoint: str | None) -> None:
    """Show settings that are not at their defaults, and those in which routers differ.

    Exits with 1 if routers differ.
    """
    with operator(endpoint) as admin:
        found = admin.call("GetConfig", admin_pb2.GetConfigRequest())
    _keep_only(found, lambda its: its.source != "default" or bool(its.differs))
    if as_json:
        print_message(found)
    else:
        conclusion = "every setting is at its default" if not found.fields else _so_what(found)
        tables = [_table(found)] if found.fields else []
        show(conclusion, *tables, *_untold(found), *missing(found.unreached))
    if any(its.differs for its in found.fields):
        raise SystemExit(_OFF)


@config.command("set")
@click.argument("values", metavar="NAME=VALUE...", nargs=-1, required=True)
@click.option(
    "--expect-revision",
    type=click.IntRange(0, MAX_INT),
    default=0,
    metavar="N",
    help="Refuse if it changed since.",
)
@act_options
@json_option
@operator_option
def set_values(
    values: Sequence[str],
    *,
    expect_revision: int,
    reason: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    endpoint: str | None,
) -> None:
    """Change live settings everywhere, or nowhere if a router or the controller cannot.

    Routers and controllers that start later have them too. NAME=null is the default. To undo a
    change, set the value before it, which `twolane events --audit` shows.
    """
    request = admin_pb2.SetConfigRequest(
        act=new_act(reason, dry_run=dry_run),
        values=_values(values),
        expect_revision=expect_revision,
    )
    with operator(endpoint) as admin:
        change(admin, "SetConfig", request, yes=yes, as_json=as_json, nothing="no change")


@config.command("reload")
@act_options
@json_option
@operator_option
def reload(*, reason: str, dry_run: bool, yes: bool, as_json: bool, endpoint: str | None) -> None:
    """Have all routers read the file of API keys again, or none if one cannot."""
    request = admin_pb2.ReloadConfigRequest(act=new_act(reason, dry_run=dry_run))
    with operator(endpoint) as admin:
        change(admin, "ReloadConfig", request, yes=yes, as_json=as_json, nothing="nothing changes")


def _values(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in map(_value, texts):
        if name in found:
            raise InvalidRequestError(f"{name} is set twice: name each setting once", field=name)
        found[name] = value
    return found


def _value(text: str) -> tuple[str, str]:
    """The name and the value as JSON, which words need no quotes for."""
    name, is_given, value = text.partition("=")
    if not (name and is_given and value):
        raise InvalidParameterError("NAME=VALUE", text, "like scaler.budget=12")
    try:
        json.loads(value)
    except json.JSONDecodeError:
        value = json.dumps(value)
    return name, value


def _keep_only(
    found: admin_pb2.GetConfigResponse, wanted: Callable[[cluster_pb2.ConfigField], bool]
) -> None:
    kept = [its for its in found.fields if wanted(its)]
    del found.fields[:]
    found.fields.extend(kept)


def _so_what(found: admin_pb2.GetConfigResponse) -> str:
    split = [its.name for its in found.fields if its.differs]
    if split:
        return f"routers differ in {', '.join(split)}: set it again"
    by_operators = sum(its.source == "operator" for its in found.fields)
    text = f"{count(len(found.fields), 'setting')}, {by_operators} set by operators"
    return f"{text}, at revision {found.revision}"


def _untold(found: admin_pb2.GetConfigResponse, names: Sequence[str] = ()) -> list[Text]:
    """A line for settings that are missing because no process has reported them."""
    shown = {name for name in names for its in found.fields if its.name.startswith(name)}
    if not found.without_controllers or (names and shown == {*names}):
        return []
    text = "not told yet: the controller's settings (scaler.…), which it tells each second"
    return [Text(text, style="yellow")]


def _table(found: admin_pb2.GetConfigResponse) -> Rows:
    """The settings in which routers differ first, then those that operators have set."""
    order = {"operator": 0, "file": 1}
    rows = sorted(
        found.fields, key=lambda its: (not its.differs, order.get(its.source, 2), not its.live)
    )
    table = Rows(("setting", "value", "default", "from", "changes"), ())
    for its in rows:
        others = "".join(f"; {name}: {value}" for name, value in sorted(its.differs.items()))
        value = Text(its.value + others, style="red" if others else "")
        how = "live" if its.live else "at a restart"
        whence = "start" if its.source == "file" else its.source
        table.add_row(its.name, value, its.default, whence, how)
    return table
