"""Metaphors that docstrings and comments had before, where the field has a word: they stay out."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FINISHED = (
    "engine", "kvtransfer", "worker", "prefill_worker", "decode_worker", "benchmarks", "router",
    "deploy", "twolane",
)  # fmt: skip
WORDS = re.compile(
    r"(?<![.`])\b(nobody|somebody|everybody|whoever|amid|for ever|rehears\w*|make-believe|"
    r"made pages|page sums?|turned (?:weights?|keys|tiles?|layout)|widened|whole heads|"
    r"a step ahead)\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("package", FINISHED)
def test_docstrings_and_comments_use_the_standard_word(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {' '.join(match[0].split())}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if "_pb2" not in path.name  # made from proto/
        for line, text in prose(path.read_text(encoding="utf-8"))
        for match in WORDS.finditer(text)
    ]
    assert found == []


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Each docstring and each comment, with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_a_word_is_found_in_a_docstring_and_in_a_comment() -> None:
    source = 'def f() -> None:\n    """Nobody calls."""\n    pass  # amid a step\n'
    assert [(line, bool(WORDS.search(text))) for line, text in prose(source)] == [
        (2, True), (3, True),
    ]  # fmt: skip
