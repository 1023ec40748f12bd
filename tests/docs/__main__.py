"""`make docs`: write the pages of docs/ that are made from the code."""

from __future__ import annotations

from tests.docs.pages import PAGES

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
