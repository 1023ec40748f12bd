from enum import Enum, auto

import pytest

from twolane.lifecycle import IllegalMoveError, Lifecycle


class Door(Enum):
    OPEN = auto()
    SHUT = auto()
    GONE = auto()


MOVES = {
    Door.OPEN: frozenset({Door.SHUT}),
    Door.SHUT: frozenset({Door.OPEN, Door.GONE}),
    Door.GONE: frozenset[Door](),
}


@pytest.mark.parametrize("start", Door)
@pytest.mark.parametrize("to", Door)
def test_only_the_moves_of_the_table_are_taken(start: Door, to: Door) -> None:
    life = Lifecycle(start, MOVES)
    allowed = to in MOVES[start]
    assert life.can_advance(to) == allowed
    if allowed:
        life.advance(to)
        assert life.state is to
    else:
        with pytest.raises(IllegalMoveError, match=f"{start.name} -> {to.name}"):
            life.advance(to)
        assert life.state is start


def test_a_state_without_moves_is_over() -> None:
    assert Lifecycle(Door.GONE, MOVES).is_over
    assert not Lifecycle(Door.OPEN, MOVES).is_over
