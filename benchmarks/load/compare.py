"""Compares targets: one row per figure, with each target's ratio to the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

Figures = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of every target. `ratios` are to the first target, one for each of the others;
    None where a side is missing or the first is zero."""

    name: str
    values: tuple[float | None, ...]
    ratios: tuple[float | None, ...]


def compare(figures_of: Mapping[str, Figures]) -> list[Row]:
    """Rows in the order of the first target's figures. All targets have the same figures."""
    first, *others = figures_of.values()
    return [
        Row(
            name,
            tuple(figures[name] for figures in figures_of.values()),
            tuple(_ratio(other[name], first[name]) for other in others),
        )
        for name in first
    ]


def show(title: str, figures_of: Mapping[str, Figures]) -> Table:
    """The rows of `compare` as a table to print."""
    names = list(figures_of)
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for name in names[1:]:
        table.add_column(f"{name} / {names[0]}", justify="right")
    for row in compare(figures_of):
        cells = [*map(_number, row.values), *map(_number, row.ratios)]
        table.add_row(row.name, *cells)
    return table


def columns(rows: Sequence[Mapping[str, object]]) -> dict[str, list[object]]:
    """Rows of equal keys as one list per key: each name is written once."""
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value)}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
