"""Files stay short enough to read in one go."""

from __future__ import annotations

import statistics
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
MEDIAN_LINES = 120
MAX_LINES = 400


def hand_written() -> dict[str, int]:
    """Lines of each Python and proto file that git tracks or would, generated stubs aside."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.proto"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [name for name in listed.split() if not name.startswith("twolane/v1/")]
    paths = {name: ROOT / name for name in files}
    return {
        name: len(path.read_text(encoding="utf-8").splitlines())
        for name, path in paths.items()
        if path.exists()
    }


def test_no_file_is_longer_than_400_lines() -> None:
    assert {name: n for name, n in hand_written().items() if n > MAX_LINES} == {}


def test_the_median_file_is_shorter_than_120_lines() -> None:
    lines = [n for n in hand_written().values() if n > 0]
    assert len(lines) > 50
    assert statistics.median(lines) < MEDIAN_LINES
