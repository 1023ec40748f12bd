"""mkdocs' hook (mkdocs.yml): README.md and others become pages, and links that leave docs/ lead to
copies.

    page of the site      made from
    index.md              README.md
    contributing.md       CONTRIBUTING.md
    benchmarks.md         benchmarks/README.md
    bundled-model.md      deploy/bundled/README.md
    files/PATH            any other file of the tree that a page links to

So the same Markdown can be read in a checkout and on the site. A link to a folder leads to its
README; if it has none, the site has the text without the link.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
OTHER_PAGES = {
    ROOT / "README.md": "index.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "benchmarks/README.md": "benchmarks.md",
    ROOT / "deploy/bundled/README.md": "bundled-model.md",
}
WIDE = ".md-grid { max-width: 76rem; }\n"  # drawings and commands of 120 columns fit
LINK = re.compile(r"\[([^\]\n]*)\]\(([^)#\s]+)((?:#[^)\s]*)?)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies outside docs/."""
    files.append(File.generated(config, "wide.css", content=WIDE))
    for path, uri in OTHER_PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    pages = [*OTHER_PAGES, *DOCS.glob("*.md")]
    for path in sorted({path for page in pages for path in _linked(page)}):
        if path not in OTHER_PAGES and not path.is_relative_to(DOCS):
            file = File.generated(config, _uri(path), abs_src_path=str(path))
            file.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(file)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with its links as they are on the site. What leads nowhere stays: mkdocs warns."""
    source = Path(page.file.abs_src_path or "")
    here = os.path.dirname(page.file.src_uri) or "."

    def on_site(link: re.Match[str]) -> str:
        text, target, anchor = link.groups()
        path = _target(source, target)
        if path is not None:
            return f"[{text}]({os.path.relpath(_uri(path), here)}{anchor})"
        return text if (source.parent / target).is_dir() else link[0]

    return LINK.sub(on_site, markdown)


def _linked(page: Path) -> Iterable[Path]:
    for _, target, _ in LINK.findall(page.read_text(encoding="utf-8")):
        path = _target(page, target)
        if path is not None:
            yield path


def _target(page: Path, link: str) -> Path | None:
    """The file of this tree to which the link leads, if any."""
    path = (page.parent / link).resolve()
    if path.is_dir():
        path /= "README.md"
    return path if path.is_file() and path.is_relative_to(ROOT) else None


def _uri(path: Path) -> str:
    """Where the site has that file."""
    if path in OTHER_PAGES:
        return OTHER_PAGES[path]
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    return f"files/{path.relative_to(ROOT).as_posix()}"
