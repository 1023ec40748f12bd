"""Keeps the code of a commit as frozen.tar.xz, for `tests.skew.test_versions`.

    python -m tests.skew.freeze COMMIT

Run it when a minor version is released: the next one must work with processes of this one. Left out
is what the fake engine does without: weights and kernels.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).parent / "frozen.tar.xz"
_ROOT = Path(__file__).parents[2]
_PARTS = ("router", "worker", "prefill_worker", "decode_worker", "kvtransfer", "engine", "deploy")
_LEFT_OUT = ("engine/kernels/",)


def main(commit: str) -> None:
    command = ["git", "archive", commit, "twolane", *_PARTS]
    raw = subprocess.run(command, cwd=_ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(raw)) as found, tarfile.open(ARCHIVE, "w:xz") as kept:
        note = commit.encode() + b"\n"
        _add(kept, "COMMIT", note)
        for member in found:
            path = member.name
            if not member.isfile() or not path.endswith(".py") or path.startswith(_LEFT_OUT):
                continue
            inside = path if path.startswith("twolane/") else f"twolane/{path}"
            content = found.extractfile(member)
            assert content is not None
            _add(kept, inside, content.read())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


if __name__ == "__main__":
    main(*sys.argv[1:])
