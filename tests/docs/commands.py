"""docs/commands.md, made from what each command's `--help` says."""

from __future__ import annotations

import inspect

import click

from tests.docs.tables import table
from twolane.cli.app import app
from twolane.cli.examples import EXAMPLES, leaves
from twolane.deploy.cli.plan_command import plan
from twolane.deploy.cli.up_command import up

HEAD = """# Commands

Made from the code by `make docs`; `twolane COMMAND --help` says the same. What an error exits with:

| code | means |
|--|--|
| 0 | done |
| 1 | it failed; the message says why |
| 2 | the command line is wrong, or not allowed from here, or what it names is not as expected |
| 3 | no cluster, or an overloaded one |
| 4 | the deadline passed |
| 5 | not proven, or not safe in time |
| 130 | interrupted, or cancelled |
"""


def page() -> str:
    others = {"up": up, "plan": plan}  # a command of ours becomes these programs
    commands = {words: others.get(words, each) for words, each in leaves(app).items()}
    return HEAD + "".join(_section(words, each) for words, each in sorted(commands.items()))


def _section(words: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"twolane {words}")
    usage = " ".join(command.collect_usage_pieces(context))
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    examples = "\n".join(EXAMPLES[words])
    options = [each for each in command.params if isinstance(each, click.Option)]
    rows = [_row(each, context) for each in options if not each.hidden]
    parts = [
        f"\n## twolane {words}\n",
        f"`twolane {words} {usage}`\n",
        f"{text}\n",
        f"```sh\n{examples}\n```\n",
    ]
    if rows:
        parts.append(table(("option", "does"), rows) + "\n")
    return "\n".join(parts)


def _row(option: click.Option, context: click.Context) -> tuple[str, str]:
    record = option.get_help_record(context)
    assert record is not None
    names, text = record
    return f"`{' '.join(names.split())}`", " ".join(text.split())
