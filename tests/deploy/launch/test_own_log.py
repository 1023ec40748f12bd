"""The logs that a launcher reads for operators."""

from __future__ import annotations

from pathlib import Path

import pytest

from twolane.deploy.errors import RefusedError
from twolane.deploy.launch.process_launcher import read_own_log
from twolane.v1 import acts_pb2


def test_log_that_is_not_there_or_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "w.log").write_text("w\n")
    (tmp_path / "x.log").mkdir()
    assert list(read_own_log(tmp_path, acts_pb2.ReadLogRequest(name="w")).lines) == ["w"]
    with pytest.raises(RefusedError, match="has no log of v"):
        read_own_log(tmp_path, acts_pb2.ReadLogRequest(name="v"))
    with pytest.raises(RefusedError, match=r"the log of x cannot be read: .*directory"):
        read_own_log(tmp_path, acts_pb2.ReadLogRequest(name="x"))
