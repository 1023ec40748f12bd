"""The licences of all that an installation brings, from the metadata of what is installed here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.message import Message
from importlib.metadata import PackageNotFoundError, distribution
from typing import cast

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docs.tables import table

_OURS = {"dev", "bench"}  # extras for those who change twolane
# Copyleft that would bind those who pass twolane on with it.
_REFUSED = re.compile(r"\b(?:A?GPL|GNU (?:Affero )?General Public)", re.IGNORECASE)
_LESSER = re.compile(r"\bLGPL|GNU Lesser|GNU Library", re.IGNORECASE)


@dataclass(frozen=True, slots=True, order=True)
class Licence:
    """Of a distribution. `text` is empty where its metadata names none."""

    name: str
    version: str
    text: str
    url: str

    @property
    def problem(self) -> str:
        if not self.text:
            return f"{self.name} {self.version} names no licence"
        if _REFUSED.search(self.text) and not _LESSER.search(self.text):
            return f"{self.name} {self.version} is under {self.text}"
        return ""


def licences(root: str = "twolane") -> list[Licence]:
    """Of everything that `pip install root[extras]` brings with all extras for users, without
    `root`. What is not installed here, as other platforms' packages, is left out."""
    found = {name: _licence(name) for name in _brought(root, frozenset(extras_of(root)))}
    return sorted(each for each in found.values() if each.name != root)


def extras_of(root: str = "twolane") -> list[str]:
    metadata = cast(Message, distribution(root).metadata)
    return sorted({*(metadata.get_all("Provides-Extra") or ())} - _OURS)


def page(found: Iterable[Licence], version: str) -> str:
    rows = ((each.name, each.version, each.text, each.url) for each in found)
    return (
        f"# Licences\n\ntwolane {version} is under Apache-2.0. `pip install 'twolane"
        f"[{','.join(extras_of())}]'` brings:\n\n"
        + table(("package", "version", "licence", "home"), rows)
        + "\n\ntorch for CUDA also brings NVIDIA's libraries, under NVIDIA's own licences.\n"
    )


def _brought(root: str, extras: frozenset[str]) -> set[str]:
    seen: dict[str, frozenset[str]] = {}
    waiting = [(root, extras)]
    while waiting:
        name, wanted = waiting.pop()
        if name in seen and wanted <= seen[name]:
            continue
        seen[name] = seen.get(name, frozenset()) | wanted
        waiting.extend(_requirements(name, seen[name]))
    return {*seen}


def _requirements(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        marker, needed = requirement.marker, canonicalize_name(requirement.name)
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            try:
                distribution(needed)
            except PackageNotFoundError:
                continue
            yield needed, frozenset(requirement.extras)


def _licence(name: str) -> Licence:
    metadata = cast(Message, distribution(name).metadata)
    classifiers = [
        text.rpartition(" :: ")[2]
        for text in metadata.get_all("Classifier") or ()
        if text.startswith("License ::") and text != "License :: OSI Approved"
    ]
    first_line = (metadata.get("License") or "").strip().partition("\n")[0]
    text = metadata.get("License-Expression") or ", ".join(classifiers) or first_line
    links = [url.partition(", ") for url in metadata.get_all("Project-URL") or ()]
    home = [url for label, _, url in links if label.lower() in ("homepage", "home", "repository")]
    return Licence(
        canonicalize_name(name), distribution(name).version, text[:200],
        metadata.get("Home-page") or (home or [""])[0],
    )  # fmt: skip
