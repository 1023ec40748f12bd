"""Nothing is left of a group whose ranks cannot all be started."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engine.ranks import fake_member
from twolane.engine.config import EngineConfig
from twolane.engine.ranks.start import start_ranks

FAKE = (sys.executable, str(Path(fake_member.__file__)))


def test_a_rank_that_cannot_be_spawned_leaves_no_other_and_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spawn = subprocess.Popen
    made: list[subprocess.Popen[bytes]] = []

    def popen(*args: Any, **kwargs: Any) -> Any:
        if made:
            raise OSError(errno.EAGAIN, "no process is free")
        made.append(spawn(*args, **kwargs))
        return made[0]

    monkeypatch.setattr(subprocess, "Popen", popen)
    n_fds = len(os.listdir("/proc/self/fd"))
    try:
        with pytest.raises(OSError, match="no process"):
            start_ranks(EngineConfig(model_dir=Path("m"), tensor_parallel=2), command=FAKE)
        assert list(tmp_path.iterdir()) == [], "its folder is left"
        assert not psutil.pid_exists(made[0].pid), "rank 0 is left"
        assert len(os.listdir("/proc/self/fd")) == n_fds, "descriptors are left"
    finally:
        made[0].kill()
        made[0].wait()
