"""The documents as a site: mkdocs builds them without a warning, and so without a dead link."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT
from tests.docs.site import DOCS, OTHER_PAGES


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert (built.returncode, re.findall("WARNING.*", built.stderr)) == (0, []), built.stderr
    return folder


def test_every_document_is_a_page(site: Path) -> None:
    pages = {path.relative_to(site).as_posix() for path in site.glob("*.html")} - {"404.html"}
    names = [*(path.name for path in DOCS.glob("*.md")), *OTHER_PAGES.values()]
    assert pages == {name.replace(".md", ".html") for name in names}


def test_a_link_out_of_docs_leads_to_a_copy(site: Path) -> None:
    page = (site / "several-machines.html").read_text(encoding="utf-8")
    link = 'href="files/deploy/systemd/twolane-agent.service"'
    assert link in page
    ours = ROOT / "deploy/systemd/twolane-agent.service"
    assert (site / "files/deploy/systemd/twolane-agent.service").read_bytes() == ours.read_bytes()
    assert 'href="guide.html"' in (site / "index.html").read_text(encoding="utf-8")


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(
            r'<(?:script|img|link rel="stylesheet")[^>]* (?:src|href)="([^"]*)"', text
        )
        assert loaded
        assert [url for url in loaded if "://" in url or url.startswith("//")] == []


def test_every_page_is_named_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = {path.name for path in DOCS.glob("*.md") if f"](docs/{path.name})" not in readme}
    assert missing == {"moves.md"}
