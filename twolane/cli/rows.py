"""A table where it fits; in a narrower terminal each row as a paragraph of names and values."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_BOUNDLESS = 10_000
_INDENT = 2
_GAP = "  "


class Rows:
    """The first column names its row. Nothing is cut."""

    def __init__(self, words: Sequence[str], numbers: Sequence[str]) -> None:
        """Names of the columns: `numbers` stand to the right."""
        self._words = words
        self._numbers = numbers
        self._rows: list[tuple[Text, ...]] = []

    def add_row(self, *cells: str | Text) -> None:
        self._rows.append(tuple(Text(cell) if isinstance(cell, str) else cell for cell in cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self._table()
        boundless = options.update(max_width=_BOUNDLESS)
        if Measurement.get(console, boundless, table).maximum <= options.max_width:
            yield table
            return
        names = [*self._words, *self._numbers]
        for name, *cells in self._rows:
            yield Text.assemble((f"{names[0]} ", "dim"), name)
            said = [
                Text.assemble((f"{column} ", "dim"), cell)
                for column, cell in zip(names[1:], cells, strict=False)
                if cell.plain
            ]
            for line in _lines(said, options.max_width - _INDENT):
                yield Padding(line, (0, 0, 0, _INDENT))

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        for name in self._words:
            table.add_column(name, no_wrap=True)
        for name in self._numbers:
            table.add_column(name, justify="right", no_wrap=True)
        for cells in self._rows:
            table.add_row(*cells)
        return table


def _lines(parts: Sequence[Text], width: int) -> list[Text]:
    """As many parts a line as fit, each of them whole."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + len(_GAP) + part.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], _GAP, part)
        else:
            lines.append(part)
    return lines
