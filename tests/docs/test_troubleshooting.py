"""docs/troubleshooting.md quotes what the code says, and knows every check of `twolane doctor`."""

from __future__ import annotations

import re

import pytest

from tests.docs.messages import ROOT, is_said, messages, texts_of
from tests.docs.tables import rows_of
from twolane.router.operators.diagnosis import CHECKS

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
BEFORE, DOCTORS = PAGE.split("## What doctor finds")
QUOTED = sorted({row[0].strip("`") for row in rows_of(BEFORE) if row[0].startswith("`")})
FOUND = [(row[0].strip("`"), row[1].strip("`")) for row in rows_of(DOCTORS)]
MAKEFILE = re.sub(r"\$\(\w+\)", "…", (ROOT / "Makefile").read_text(encoding="utf-8"))


@pytest.mark.parametrize("message", [*QUOTED, *(text for _, text in FOUND)])
def test_a_quoted_message_is_one_of_the_code(message: str) -> None:
    assert is_said(message) or message in MAKEFILE


def test_every_check_of_doctor_is_explained() -> None:
    assert {check for check, _ in FOUND} == {*CHECKS}


def test_every_finding_of_doctor_is_explained() -> None:
    said = [
        text
        for text in texts_of(ROOT / "router/operators/diagnosis.py", "_finding")
        if re.search(r"\w", text) and not any(quoted.rstrip("…") in text for _, quoted in FOUND)
    ]
    assert said == []


def test_a_message_that_nobody_says_is_noticed() -> None:
    assert len(messages()) > 1000
    assert not is_said("no cluster answers to …")
