"""A table, or in a narrow terminal one paragraph of names and values for each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.text import Text

_INDENT = 2
EPOCH_SHOWN = 8  # hexadecimal digits; enough to see that a worker was restarted
_GAP = "  "
_EMPTY = Text()


class Rows:
    """The first column is the row's name. No text is cut off."""

    def __init__(self, words: Sequence[str], numbers: Sequence[str]) -> None:
        """The names of the columns; those in `numbers` are aligned to the right."""
        self._words = words
        self._numbers = numbers
        self._rows: list[tuple[Text, ...]] = []

    def add_row(self, *cells: str | Text) -> None:
        self._rows.append(tuple(Text(cell) if isinstance(cell, str) else cell for cell in cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self._widths()
        if sum(widths) + len(_GAP) * (len(widths) - 1) <= options.max_width:
            yield from self._table(widths)
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

    def _widths(self) -> list[int]:
        """Of each column: its longest cell's, or its name's."""
        names = [*self._words, *self._numbers]
        columns = zip_longest(*self._rows, fillvalue=_EMPTY)
        longest = [max(cell.cell_len for cell in column) for column in columns]
        longest += [0] * (len(names) - len(longest))
        return [max(len(name), n) for name, n in zip(names, longest, strict=False)]

    def _table(self, widths: Sequence[int]) -> Iterator[Text]:
        """One line a row. A table of rich's own takes ten times as long for hundreds of rows."""
        names = [*self._words, *self._numbers]
        yield self._line([Text(name, style="dim") for name in names], widths)
        for cells in self._rows:
            yield self._line(cells, widths)

    def _line(self, cells: Sequence[Text], widths: Sequence[int]) -> Text:
        line = Text(no_wrap=True)
        n_words = len(self._words)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=False)):
            space = " " * (width - cell.cell_len)
            if i:
                line.append(_GAP)
            if i >= n_words:
                line.append(space)
            line.append_text(cell)
            if i < n_words and i < len(cells) - 1:
                line.append(space)
        return line


def _lines(parts: Sequence[Text], width: int) -> list[Text]:
    """Lines with as many parts as fit; no part is split."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + len(_GAP) + part.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], _GAP, part)
        else:
            lines.append(part)
    return lines
