"""What a load on hosts (`tests.hosts.load`) knows of streams that are silent."""

from __future__ import annotations

import itertools
import re

import pytest

from tests.hosts.load import Load
from tests.own_time import OwnTime


def test_a_silence_that_is_too_long_is_told_with_its_stream_its_times_and_its_fault() -> None:
    now = lost = 100.0
    took = OwnTime(lambda: lost, lambda: now)
    load = Load(took)
    load.heard(1)
    now += 2.0
    took.look()
    load.during = "a fault"
    for stream in (1, 2):
        load.heard(stream)
    load.during = "another fault"
    now, lost = now + 3.0, lost + 0.5
    took.look()
    load.heard(2)
    now += 3.0  # it is silent now
    load.check(silence_s=6.0)
    told = (
        "stream 1 was silent for 5.50 s of own time (6.00 s, 0.50 s lost), "
        "from 2.00 s on (2.00 s), in a fault"
    )
    with pytest.raises(AssertionError, match=f"^{re.escape(told)}$"):
        load.check(silence_s=5.0)


def test_a_stream_that_is_heard_costs_no_look_at_the_machine() -> None:
    """A look takes longer than a token where processes have hundreds of threads: a client that
    looks at each token is late, and takes that for silence."""
    looks = itertools.count()
    load = Load(OwnTime(lambda: float(next(looks))))
    for _ in range(100):
        load.heard(1)
    assert next(looks) == 1, "the one of its beginning"
