"""Abandon messages wait for the answer of the receiver that they are for, and of no other."""

from __future__ import annotations

from twolane.kvtransfer.config import LeaseConfig
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.send.abandons import UnansweredAbandons

HERE, THERE = 7, 8


def make() -> UnansweredAbandons:
    """One that was just said to HERE."""
    farewells = UnansweredAbandons(LeaseConfig())
    farewells.add(Key("r", 1, 1, HERE), 1, "cancelled", 0.0)
    assert [epoch for epoch, _ in farewells.due(0.0)] == [HERE]
    assert not farewells.due(0.0)
    return farewells


def test_a_link_is_idle_though_another_receiver_has_not_answered() -> None:
    farewells = make()
    assert farewells.has(HERE)
    assert not farewells.has(THERE)


def test_a_link_that_is_back_hears_its_farewells_at_once() -> None:
    farewells = make()
    farewells.hurry(THERE, 0.0)
    assert not farewells.due(0.0)
    farewells.hurry(HERE, 0.0)
    assert [epoch for epoch, _ in farewells.due(0.0)] == [HERE]
