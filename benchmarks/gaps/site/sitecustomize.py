"""Python imports this at start-up if the folder is on its path: see `benchmarks.gaps.stamps`."""

import os
from pathlib import Path

from benchmarks.gaps.stamps import FOLDER, begin

if folder := os.environ.get(FOLDER):
    begin(Path(folder))
