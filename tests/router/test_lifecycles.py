"""Every pair of states of every lifecycle: what is in the drawn table moves, the rest refuses."""

import itertools
from typing import Any

import pytest

from twolane.lifecycle import IllegalMoveError, Lifecycle
from twolane.router.members.member import MEMBER_MOVES, MemberState
from twolane.router.requests.attempt import ATTEMPT_MOVES, AttemptState
from twolane.router.requests.request import REQUEST_MOVES, RequestState

DRAWN: dict[Any, dict[str, str]] = {
    RequestState: {
        "QUEUED": "RUNNING FAILED CANCELLED",
        "RUNNING": "RESUMING ENDING FAILED CANCELLED",
        "RESUMING": "RUNNING FAILED CANCELLED",
        "ENDING": "FINISHED FAILED CANCELLED",
        "FINISHED": "",
        "FAILED": "",
        "CANCELLED": "",
    },
    AttemptState: {
        "PLACED": "JUDGING DECODING OVER",
        "JUDGING": "DECODING OVER",
        "MOVING": "PLACED DECODING OVER",
        "DECODING": "OVER",
        "OVER": "",
    },
    MemberState: {
        "JOINING": "ALIVE DRAINING GONE",
        "ALIVE": "SUSPECT DRAINING GONE",
        "SUSPECT": "ALIVE DRAINING GONE",
        "DRAINING": "ALIVE SUSPECT GONE",
        "GONE": "",
    },
}
TABLES: dict[Any, Any] = {
    RequestState: REQUEST_MOVES,
    AttemptState: ATTEMPT_MOVES,
    MemberState: MEMBER_MOVES,
}
PAIRS = [(kind, a, b) for kind in TABLES for a, b in itertools.product(kind, kind)]


@pytest.mark.parametrize(("kind", "a", "b"), PAIRS, ids=lambda value: getattr(value, "name", ""))
def test_exactly_the_drawn_moves_are_allowed(kind: Any, a: Any, b: Any) -> None:
    life = Lifecycle(a, TABLES[kind])
    if b.name in DRAWN[kind][a.name].split():
        life.advance(b)
        assert life.state is b
    else:
        with pytest.raises(IllegalMoveError):
            life.advance(b)
        assert life.state is a
