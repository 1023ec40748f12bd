"""A result on disk: figures, and all that is needed to check them or to run them again.

benchmarks/results/NAME.json    name, date, command, commit, the paths that it depends on, machine,
                                versions, figures
benchmarks/results/NAME.png     the plot, where there is one
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

from benchmarks.machine import describe_commit, describe_machine, describe_versions

RESULTS = Path(__file__).parent / "results"
_TABLE = Path(__file__).with_name("depends_on.toml")
_PRODUCT = (
    "engine", "kvtransfer", "worker", "prefill_worker", "decode_worker", "router", "twolane",
    "deploy",
)  # fmt: skip


class Plot(Protocol):
    """What `save` needs of a matplotlib figure."""

    def savefig(self, fname: Path, *, dpi: float) -> None: ...


def save(
    name: str,
    figures: Mapping[str, Any],
    *,
    plot: Plot | None = None,
    folder: Path = RESULTS,
    commit: str | None = None,
) -> Path:
    """Write NAME.json (and NAME.png), replacing an earlier result of that name; returns the JSON's
    path. Units are in the figures' names. A NaN or an infinity is a ValueError: write None.
    `commit` is used only for code outside a git checkout."""
    document = {
        "name": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        **describe_commit(commit),
        "depends_on": depends_on(name),
        "machine": describe_machine(),
        "versions": {"python": platform.python_version(), **describe_versions()},
        "figures": figures,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(_encode(document, "") + "\n")
    if plot is not None:
        plot.savefig(path.with_suffix(".png"), dpi=110)
    return path


def depends_on(name: str) -> list[str]:
    """The paths, from the repository's root, that a result of that name depends on."""
    table = tomllib.loads(_TABLE.read_text())
    entries = [(start, entry) for entry in table["results"] for start in entry["names"]]
    fitting = [(len(start), entry) for start, entry in entries if name.startswith(start)]
    if not fitting:
        return list(_PRODUCT)
    entry = max(fitting, key=itemgetter(0))[1]
    shared = [path for group in entry.get("groups", ()) for path in table["groups"][group]]
    return [*shared, *entry["paths"]]


def _encode(value: Any, indent: str) -> str:
    """JSON with one line per scalar or list of scalars: readable, and small for long records."""
    inner = indent + " "
    if isinstance(value, Mapping) and value:
        items = [f"{inner}{json.dumps(str(k))}: {_encode(v, inner)}" for k, v in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    nested = (Mapping, list, tuple)
    if isinstance(value, list | tuple) and any(isinstance(v, nested) for v in value):
        items = [inner + _encode(v, inner) for v in value]
        return "[\n" + ",\n".join(items) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)
