"""Where a guard stands, found by what it is: no comment has to say so.

In the modules of grants, tombstones, sessions and owners every line of these two kinds is a site:

    if ...:            an early exit: its body ends in return, raise, continue or break.
        return         Its mutant never takes it.
    a == b             a comparison of an epoch, a generation, an attempt, an owner, a state or a
                       count. Its mutant leaves it out of the condition that it is part of, or
                       says the opposite where it is the whole of one.

A site is named by its file, its function and the source of its condition, so that moving a line
changes nothing. `tests/mutants/sites.toml` says of each which test fails without it, or why none
need.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("sites.toml")

MODULES = (
    "kvtransfer/receive/grant_book.py",
    "kvtransfer/receive/grant.py",
    "kvtransfer/receive/peers.py",
    "kvtransfer/receive/inbound.py",
    "kvtransfer/send/abandons.py",
    "kvtransfer/send/grant.py",
    "kvtransfer/send/outbound.py",
    "kvtransfer/link/peer_links.py",
    "kvtransfer/send/posts.py",
    "kvtransfer/receive/receiver.py",
    "kvtransfer/receive/driver.py",
    "kvtransfer/send/sender.py",
    "kvtransfer/send/driver.py",
    "kvtransfer/send/closing_outlets.py",
    "kvtransfer/transports/common/claims.py",
    "kvtransfer/transports/common/pending_sums.py",
    "kvtransfer/transports/nixl/landing.py",
    "router/claims.py",
    "router/requests/adopted.py",
    "router/requests/attempt.py",
    "router/dispatch/adopting.py",
    "router/dispatch/drain_check.py",
    "router/dispatch/endings.py",
    "router/dispatch/events.py",
    "router/dispatch/load_tally.py",
    "router/members/drain_wish.py",
    "router/members/member.py",
    "router/members/membership.py",
    "router/dispatch/recovery.py",
    "router/members/session.py",
    "router/members/worker_sessions.py",
    "router/store.py",
    "router/takeovers.py",
    "twolane/lifecycle.py",
    "twolane/tombstones.py",
    "worker/attempts/attempt_log.py",
    "worker/commands.py",
    "worker/attempts/labels.py",
    "worker/peers/peers.py",
    "worker/attempts/registry.py",
    "worker/attempts/takeover.py",
    "worker/drain.py",
    "worker/growth_reserve.py",
    "worker/page_returns.py",
    "worker/sessions/session.py",
    "worker/sessions/sessions.py",
)

_COUNTED = re.compile(
    r"epoch|generation|attempt|owner|fence|claim|state|\bn_|number|index|len\(|count|capacity"
)
_EXITS = (ast.Return, ast.Raise, ast.Continue, ast.Break)


@dataclass(frozen=True, slots=True)
class Site:
    """One condition, and what its mutant has in its place. Columns are in characters."""

    file: str
    place: str  # the function's qualified name
    code: str  # of the condition, as `ast.unparse` writes it; a second one alike ends in " #2"
    replacement: str
    first_line: int  # from 1
    first_column: int
    last_line: int
    last_column: int
    exit_line: int  # where an early exit begins: without it, who never comes there sees no change

    @property
    def name(self) -> str:
        return f"{self.place}: {self.code}"

    @property
    def key(self) -> tuple[str, str]:
        return self.file, self.name

    def mutated(self, source: str) -> str:
        """The module without this guard, every other line where it was."""
        lines = source.splitlines(keepends=True)
        before, after = lines[self.first_line - 1], lines[self.last_line - 1]
        empty = "\n" * (self.last_line - self.first_line)
        new = f"({self.replacement}{empty})"
        changed = f"{before[: self.first_column]}{new}{after[self.last_column :]}"
        lines[self.first_line - 1 : self.last_line] = [changed]
        return "".join(lines)


def find_sites(file: str, source: str) -> list[Site]:
    """Every site of one module, in the order of its lines."""
    found: list[Site] = []
    names: Counter[tuple[str, str]] = Counter()
    for place, condition, replacement, exit_line in sorted(
        _conditions(ast.parse(source), ""), key=lambda c: (c[1].lineno, c[1].col_offset)
    ):
        code = ast.unparse(condition)
        names[place, code] += 1
        n = names[place, code]
        assert condition.end_lineno is not None
        assert condition.end_col_offset is not None
        found.append(
            Site(
                file,
                place,
                code if n == 1 else f"{code} #{n}",
                replacement,
                condition.lineno,
                condition.col_offset,
                condition.end_lineno,
                condition.end_col_offset,
                exit_line,
            )
        )
    return found


def all_sites() -> list[Site]:
    return [site for file in MODULES for site in find_sites(file, (ROOT / file).read_text("utf-8"))]


@dataclass(frozen=True, slots=True)
class Record:
    """By file and the site's name: the test that fails without it, or why none need."""

    killed: dict[tuple[str, str], str]
    spared: dict[tuple[str, str], str]

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self.killed or key in self.spared


def read_record() -> Record:
    tables = tomllib.loads(RECORD.read_text("utf-8"))
    killed, spared = (
        {
            (file, name): text
            for file, sites in tables.get(kind, {}).items()
            for name, text in sites.items()
        }
        for kind in ("killed", "spared")
    )
    return Record(killed, spared)


def audit() -> list[str]:
    """Complaints about sites that nobody has tried, and about entries of sites that are gone."""
    record = read_record()
    known = {**record.killed, **record.spared}
    here = {(site.file, site.name) for site in all_sites()}
    both = record.killed.keys() & record.spared.keys()
    return [
        *(
            f"{file}: no test is known to fail without `{name}`"
            for file, name in sorted(here - known.keys())
        ),
        *(
            f"sites.toml: {file} has no `{name}` any more"
            for file, name in sorted(known.keys() - here)
        ),
        *(f"sites.toml: {file}, `{name}` is both killed and spared" for file, name in sorted(both)),
        *(
            f"sites.toml: {file}, `{name}` is spared for no reason"
            for (file, name), why in record.spared.items()
            if not why.strip()
        ),
        *(
            f"sites.toml: there is no test {test}"
            for test in sorted(set(record.killed.values()))
            if not is_there(test)
        ),
    ]


def is_there(test: str) -> bool:
    """Whether its file has a test function of that name."""
    file, _, name = test.partition("::")
    path = ROOT / file
    return path.exists() and f"def {name.partition('[')[0]}(" in path.read_text("utf-8")


Condition = tuple[str, ast.expr, str, int]


def _conditions(node: ast.AST, place: str) -> Iterator[Condition]:
    """Conditions of `node` and below, each with its function's name, its replacement, and the line
    of its early exit (0: it is none)."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if child.name != "check_integrity":
                yield from _conditions(child, f"{place}.{child.name}" if place else child.name)
        elif not isinstance(child, ast.Assert):  # those are our own laws: they end the process
            if isinstance(node, ast.If) and child is node.test and _exits(node):
                yield place, node.test, "False", node.body[0].lineno
            elif isinstance(child, ast.Compare) and _is_counted(child):
                yield place, child, _without(child, node), 0
            yield from _conditions(child, place)


def _exits(node: ast.If) -> bool:
    return isinstance(node.body[-1], _EXITS)


def _is_counted(comparison: ast.Compare) -> bool:
    return _COUNTED.search(ast.unparse(comparison)) is not None


def _without(comparison: ast.Compare, parent: ast.AST) -> str:
    if isinstance(parent, ast.BoolOp):
        return "False" if isinstance(parent.op, ast.Or) else "True"
    return f"not ({ast.unparse(comparison)})"
