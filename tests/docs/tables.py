"""Markdown tables, made and read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

Row = Sequence[str]


def table(head: Row, rows: Iterable[Row]) -> str:
    """A table with these columns."""
    lines = [head, ["--"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in lines)


def rows_of(text: str) -> Iterator[list[str]]:
    """The cells of every table row of a page, headings and rulers left out."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if not line.startswith("|") or set(line) <= set("|- "):
            continue
        if at + 1 < len(lines) and set(lines[at + 1]) <= set("|- ") and lines[at + 1]:
            continue  # the heading of the ruler below it
        cells = line.strip().strip("|").replace("\\|", "\0").split("|")
        yield [cell.strip().replace("\0", "|") for cell in cells]


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
