"""A full disk costs a cluster's launcher the lines of its events, not the cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from twolane.deploy.cli.up_command import _tell_and_log, _while_read
from twolane.deploy.launch.events import Event, Kind

FULL = Path("/dev/full")  # each write there fails with ENOSPC
DIED = Event(kind=Kind.DIED, name="decode-0", epoch=1, text="killed by SIGKILL")


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_event_that_cannot_be_logged_is_told_all_the_same(tmp_path: Path) -> None:
    told: list[Event] = []
    log = FULL.open("a")
    _tell_and_log(told.append, log, tmp_path, DIED)
    assert told == [DIED]
    with pytest.raises(OSError, match="No space left"):
        log.close()


def test_event_that_the_output_does_not_take_is_not_told_and_the_next_one_is() -> None:
    told: list[Event] = []
    is_full = True

    def tell(event: Event) -> None:
        if is_full:
            raise OSError("No space left on device")
        told.append(event)

    tell_reader = _while_read(tell, sys.stdout)
    tell_reader(DIED)
    is_full = False
    tell_reader(DIED)
    assert told == [DIED]
