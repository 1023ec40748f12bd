"""A lifecycle: an enum of states, a table of allowed moves, and `advance()`, the only way to
move."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Generic, TypeVar

StateT = TypeVar("StateT", bound=Enum)


class IllegalMoveError(AssertionError):
    """A bug of ours: the table does not allow this move."""


class Lifecycle(Generic[StateT]):
    """The current state of one thing. `moves` maps each state to the states that may follow it;
    a state that maps to nothing is terminal."""

    __slots__ = ("_moves", "_next_states", "_state")

    def __init__(self, start: StateT, moves: Mapping[StateT, frozenset[StateT]]) -> None:
        self._moves = moves
        self._enter(start)

    @property
    def state(self) -> StateT:
        return self._state

    @property
    def is_over(self) -> bool:
        return not self._next_states

    def can_advance(self, to: StateT) -> bool:
        return to in self._next_states

    def advance(self, to: StateT) -> None:
        """Move to `to`, or raise `IllegalMoveError` and stay."""
        if to not in self._next_states:
            raise IllegalMoveError(f"{self._state.name} -> {to.name}")
        self._enter(to)

    def _enter(self, state: StateT) -> None:
        self._state = state
        self._next_states = _as_tuple(self._moves[state])


@cache
def _as_tuple(states: frozenset[StateT]) -> tuple[StateT, ...]:
    """One for all lifecycles, whose members are found without their hashes: routers look at every
    token."""
    return tuple(states)
