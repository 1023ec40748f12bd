"""What the documents link to and name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.symbols import ROOT, has_symbol
from tests.docs.tables import rows_of

DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "benchmarks/README.md"]
)
NAMED = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|proto|json|yaml|toml|sh|png|md))(?::([\w.]+))?`")
BUILT = "dist/"  # by `make release-check`
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")


def anchors(path: Path) -> set[str]:
    """The links that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_and_symbol_that_a_document_names_is_there(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    missing = [
        f"{path}:{symbol}"
        for path, symbol in NAMED.findall(text)
        if not ((ROOT / path).exists() and (not symbol or has_symbol(path, symbol)))
        and not (document.parent / path).exists()
        and not path.startswith(BUILT)
    ]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_document_leads_somewhere(document: Path) -> None:
    broken = []
    for target, anchor in LINK.findall(document.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path = document.parent / target if target else document
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target + anchor)
    assert broken == []


def test_each_question_of_the_design_is_answered_by_at_most_two_files() -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    questions = [row for row in rows_of(text) if row[0].endswith("?")]
    assert {row[0] for row in questions} >= {
        "Why was this request refused?",
        "How is the decode worker picked?",
        "Where is the first token sent?",
        "Where does a page come free?",
    }
    for question, where in questions:
        assert 1 <= len({path for path, _ in NAMED.findall(where)}) <= 2, question
