"""What a wheel and an sdist must hold, and must not: pure, from lists of names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

LINKED = ("router", "worker", "prefill_worker", "decode_worker", "kvtransfer", "engine", "deploy")
# What is read at run time, or copied by users, and is no Python.
NEEDED = (
    "twolane/py.typed",
    "twolane/deploy/bundled/model/config.json",
    "twolane/deploy/monitoring/dashboard.json",
    "twolane/deploy/slurm/twolane.sbatch",
    "twolane/deploy/systemd/twolane-agent.service",
    "twolane/deploy/topologies/1p1d.yaml",
)
_UNWANTED = re.compile(
    r"(?:^|/)(?:__pycache__|\.git|\.venv|node_modules)(?:/|$)|\.(?:pyc|so|o|key|pem|crt|env|log)$"
)
# What trained the bundled model; the model itself is installed.
_TRAINER = re.compile(r"deploy/bundled/(?!__init__\.py$|model/)")
MOST_BYTES = 64 << 20  # of one file


def wheel_problems(sizes: dict[str, int], tracked: Collection[str]) -> Iterator[str]:
    """`sizes` of the files in the wheel; `tracked`: the paths that git has."""
    names = {name for name in sizes if ".dist-info/" not in name}
    yield from _unwanted(sizes)
    yield from (f"{name} is outside twolane/" for name in names if not name.startswith("twolane/"))
    packaged = {in_wheel(path) for path in tracked} - {""}
    yield from (f"{name} is missing" for name in sorted({*packaged, *NEEDED} - names))
    yield from (f"{name} is not in git" for name in sorted(names - packaged))
    infos = {name.partition(".dist-info/")[2] for name in sizes} - {""}
    needed = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    yield from (f"{name} is missing in .dist-info" for name in sorted(needed - infos))


def sdist_problems(
    sizes: dict[str, int], tracked: Collection[str], left_out: Collection[str]
) -> Iterator[str]:
    """`sizes` without the folder that holds all; `left_out`: first parts of paths that belong to
    the repository alone."""
    yield from _unwanted(sizes)
    wanted = {path for path in tracked if path.partition("/")[0] not in left_out}
    yield from (f"{name} is missing" for name in sorted(wanted - {*sizes}))
    yield from (f"{name} is not in git" for name in sorted({*sizes} - {*tracked, "PKG-INFO"}))


def in_wheel(path: str) -> str:
    """Where a file of the repository is in the wheel; empty: nowhere."""
    first, _, _ = path.partition("/")
    if _TRAINER.match(path):
        return ""
    if first in LINKED:
        return f"twolane/{path}"
    return path if first == "twolane" else ""


def _unwanted(sizes: dict[str, int]) -> Iterator[str]:
    for name, size in sizes.items():
        if _UNWANTED.search(name):
            yield f"{name} has no place there"
        if size > MOST_BYTES:
            yield f"{name} has {size >> 20} MiB"
