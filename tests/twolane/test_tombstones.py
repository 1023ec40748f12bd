"""Tombstones: kept for their time, counted from the latest burial."""

from __future__ import annotations

from twolane.tombstones import Tombstones


def test_end_is_known_until_its_time_is_over() -> None:
    tombstones = Tombstones[str, int](keep_s=2.0)
    tombstones.bury("a", 1, 0.0)
    tombstones.bury("b", 2, 1.0)
    tombstones.tick(1.9)
    assert list(tombstones.items()) == [("a", 1), ("b", 2)]
    tombstones.tick(2.0)
    assert "a" not in tombstones
    assert tombstones.find("a") is None
    assert tombstones.find("b") == 2


def test_second_burial_counts() -> None:
    tombstones = Tombstones[str, int](keep_s=2.0)
    tombstones.bury("a", 1, 0.0)
    tombstones.bury("b", 2, 0.5)
    tombstones.bury("a", 3, 1.0)
    tombstones.tick(2.9)
    assert list(tombstones.items()) == [("a", 3)]
