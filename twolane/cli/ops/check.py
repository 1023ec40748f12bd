"""`twolane check`: compares the answers of the live cluster's workers."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.text import Text

from twolane.cli.common import json_option, operator, operator_option
from twolane.cli.completion import workers
from twolane.cli.ops.acting import new_act
from twolane.cli.ops.output import count, print_message, show
from twolane.cli.rows import Rows
from twolane.cli.waiting import telling
from twolane.v1 import admin_pb2

_DIFFERENT, _NOT_COMPARED = 1, 5  # exit codes

Told = Sequence[admin_pb2.CheckClusterResponse]


@click.command()
@click.option("--model", default="", help="Needed only if the cluster serves several.")
@click.option("--prompts", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option("--max-tokens", type=click.IntRange(1, 1_024), default=32, show_default=True)
@click.option(
    "--worker",
    "worker_ids",
    multiple=True,
    metavar="WORKER",
    shell_complete=workers,
    help="Only pairs with this worker; repeatable.",
)
@click.option("--reason", default="", help="The reason, for the audit log.")
@click.option("--dry-run", is_flag=True, help="Show what would be compared.")
@json_option
@operator_option
def check(
    *,
    model: str,
    prompts: int,
    max_tokens: int,
    worker_ids: Sequence[str],
    reason: str,
    dry_run: bool,
    as_json: bool,
    endpoint: str | None,
) -> None:
    """Compare answers of every prefill and decode pair with those of one worker alone.

    In exact mode they must be equal bit for bit, log-probabilities included. Prompts are random and
    end around the borders of pages. The requests of clients come first: few comparisons run at a
    time. Exits with 1 if an answer differs, and with 5 if a worker could not be compared, such as
    one that is silent or drains.
    """
    request = admin_pb2.CheckClusterRequest(
        act=new_act(reason, dry_run=dry_run),
        model=model,
        prompts=prompts,
        max_tokens=max_tokens,
        worker_ids=worker_ids,
    )
    told: list[admin_pb2.CheckClusterResponse] = []
    with operator(endpoint) as admin, telling(lambda: _so_far(told)):
        for comparison in admin.watch("CheckCluster", request):
            told.append(comparison)
            if as_json:
                print_message(comparison, in_one_line=True)
    if dry_run:
        if not as_json:
            possible = [its for its in told if not its.error]
            planned = Text("\n".join(map(_planned, told)))
            show(f"{_comparisons(possible)} would be made", planned)
        return
    if not as_json:
        worst = any(map(_is_wrong, told))
        notes = {its.exactness for its in told if its.exactness}
        parts = [Text(note, style="yellow") for note in sorted(notes)]
        show(so_what(told), _table(told), *parts, style="bold red" if worst else "bold")
    if any(map(_is_wrong, told)):
        raise SystemExit(_DIFFERENT)
    if any(its.error for its in told):
        raise SystemExit(_NOT_COMPARED)


def _so_far(told: Told) -> str:
    return f"{_comparisons(told)} made, {told[-1].left} left" if told else "no comparison made yet"


def so_what(told: Told) -> str:
    """A summary such as `decode-1 alone answers something else` or `7 comparisons: all equal`."""
    wrong = [its for its in told if _is_wrong(its)]
    failed = [its for its in told if its.error]
    left_out = f"; {len(failed)} not made" if failed else ""
    if not wrong:
        n_tokens = sum(its.tokens for its in told)
        how = "as far as can be said" if any(its.exactness for its in told) else "bit for bit"
        made = len(told) - len(failed)
        return f"{count(made, 'comparison')}, {n_tokens} tokens: equal {how}{left_out}"
    alone = [_who(its) for its in wrong if its.prefill_worker == its.decode_worker]
    names = ", ".join(alone or map(_who, wrong))
    return f"different: {names} ({len(wrong)} of {_comparisons(told)}{left_out})"


def _comparisons(told: Told) -> str:
    return count(len(told), "comparison")


def _is_wrong(its: admin_pb2.CheckClusterResponse) -> bool:
    return not (its.equal or its.error)


def _who(its: admin_pb2.CheckClusterResponse) -> str:
    if its.prefill_worker == its.decode_worker:
        return f"{its.prefill_worker} alone"
    return f"{its.prefill_worker} > {its.decode_worker}"


def _planned(its: admin_pb2.CheckClusterResponse) -> str:
    return f"{_who(its)}: not compared: {its.error}" if its.error else _who(its)


def _table(told: Told) -> Rows:
    """What differs first, then what was not compared."""
    table = Rows(("workers", "result", "with"), ("prompts", "tokens"))
    for its in sorted(told, key=lambda each: (not _is_wrong(each), not each.error)):
        tokens = str(its.tokens) if its.tokens else ""
        prompts = str(its.prompts) if its.prompts else ""
        table.add_row(_who(its), _result(its), its.reference, prompts, tokens)
    return table


def _result(its: admin_pb2.CheckClusterResponse) -> Text:
    if its.error:
        return Text(f"not compared: {its.error}", style="yellow")
    if its.equal:
        return Text("equal", style="green")
    at = f"prompt of {its.prompt_tokens} tokens, token {its.differs_at}: " * bool(its.prompts)
    return Text(f"{at}{its.difference}", style="red")
