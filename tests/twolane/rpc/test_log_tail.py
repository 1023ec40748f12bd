"""The tail of a process's log."""

from __future__ import annotations

import logging

from twolane.rpc.log_tail import LINE_CHARS, LogTail


def test_the_tail_has_the_last_lines_and_goes_on_after_one() -> None:
    tail = LogTail(most=4)
    log = logging.getLogger("tail-test")
    log.addHandler(tail)
    try:
        for n in range(6):
            log.warning("line %d", n)
        assert tail.tail(2) == (["line 4", "line 5"], 6)
        assert tail.tail(100) == (["line 2", "line 3", "line 4", "line 5"], 6)
        assert tail.tail(100, after=5) == (["line 5"], 6)
        assert tail.tail(100, after=6) == ([], 6)
        log.warning("two\nlines %s", "x" * 1000)
        assert tail.last_line == 8
        assert max(map(len, tail.tail(1)[0])) == LINE_CHARS
    finally:
        log.removeHandler(tail)
