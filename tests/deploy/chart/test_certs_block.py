"""The commands of the document that make the Secret with certificates."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import all_blocks

_KUBECTL = """#!/bin/sh
printf '%s\\n' "$@" > kubectl-said
"""


def test_the_key_that_makes_certificates_stays_out_of_the_cluster(tmp_path: Path) -> None:
    (block,) = [block for block in all_blocks(["sh"]) if "generic twolane-tls" in block.text]
    (tmp_path / "kubectl").write_text(_KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        ["sh", "-eu", "-c", block.text],
        cwd=tmp_path, env=os.environ | {"PATH": path}, check=True,
    )  # fmt: skip
    said = (tmp_path / "kubectl-said").read_text().splitlines()
    files = {Path(word.removeprefix("--from-file=")).name for word in said if "--from-file" in word}
    issued = {each.name for each in (tmp_path / "certs").iterdir()}
    assert issued - files == {"ca.key"}
    assert {"ca.crt", "router-0.crt", "router-0.key", "llm-gpu-0.key"} <= files
