"""The code blocks of the documents, and the commands in them.

A block of commands is tagged `sh` (a script) or `console` (lines that begin with `$`, and what they
print). Each is run by a test, unless a comment on the line before it says why not:

    <!-- not run here: it needs two GPUs -->
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [ROOT / "README.md", ROOT / "benchmarks/README.md", *(ROOT / "docs").glob("*.md")]
)
_FENCED = re.compile(
    r"(?:^(?: *|\d+\. )<!-- not run here: (?P<why>.+?) -->\n)?"
    r"^(?P<indent> *)```(?P<tag>\w*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
SHELLS = ("sh", "console")


@dataclass(frozen=True, slots=True)
class Block:
    """`why` it is not run by a test; empty: it is."""

    page: str
    line: int
    tag: str
    text: str
    why: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def script(self) -> str:
        """What a user types."""
        if self.tag != "console":
            return self.text
        typed, goes_on = [], False
        for line in self.text.splitlines():
            if goes_on or line.startswith("$ "):
                typed.append(line if goes_on else line[2:])
                goes_on = line.endswith("\\")
        return "\n".join(typed) + "\n"

    def commands(self) -> Iterator[list[str]]:
        """The words of each simple command: without variables before it, pipes and redirections."""
        for line in self.script.replace("\\\n", " ").splitlines():
            yield from _simple(line)


def blocks_of(path: Path) -> Iterator[Block]:
    text = path.read_text(encoding="utf-8")
    for found in _FENCED.finditer(text):
        indent = found["indent"]
        lines = [line.removeprefix(indent) for line in found["text"].splitlines()]
        begins = text.count("\n", 0, found.start("indent")) + 1
        page = str(path.relative_to(ROOT))
        yield Block(page, begins, found["tag"], "\n".join(lines) + "\n", found["why"] or "")


def all_blocks(tags: Iterable[str]) -> list[Block]:
    """Of all documents, but commands.md, whose examples tests/twolane/test_examples.py runs."""
    return [
        block
        for path in DOCUMENTS
        if path.name != "commands.md"
        for block in blocks_of(path)
        if block.tag in tags
    ]


def _simple(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word in {"|", "&&", ";", "&", "||"}:
            while words and re.fullmatch(r"\w+=.*", words[0]):
                del words[0]
            if words:
                yield words
            words = []
        else:
            words.append(word)
