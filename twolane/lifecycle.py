"""A lifecycle is an enum, a table of allowed moves, and one `advance()`. Everything else asks."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

StateT = TypeVar("StateT", bound=Enum)


class IllegalMoveError(AssertionError):
    """A bug of ours: the table does not allow this move."""


class Lifecycle(Generic[StateT]):
    """The current state of one thing. `moves` maps each state to the states that may follow it;
    a state that maps to nothing is terminal."""

    __slots__ = ("_moves", "_state")

    def __init__(self, start: StateT, moves: Mapping[StateT, frozenset[StateT]]) -> None:
        self._state = start
        self._moves = moves

    @property
    def state(self) -> StateT:
        return self._state

    @property
    def is_over(self) -> bool:
        return not self._moves[self._state]

    def can_advance(self, to: StateT) -> bool:
        return to in self._moves[self._state]

    def advance(self, to: StateT) -> None:
        """Move to `to`, or raise `IllegalMoveError` and stay."""
        if to not in self._moves[self._state]:
            raise IllegalMoveError(f"{self._state.name} -> {to.name}")
        self._state = to
