"""Doubles and helpers for tests, ours and yours: `start_local()` runs a whole cluster."""

from twolane.testing.local import LocalCluster, start_local

__all__ = ["LocalCluster", "start_local"]
