"""Test doubles and helpers, for twolane's tests and for yours: `start_local()` runs a cluster."""

from twolane.testing.local import LocalCluster, start_local

__all__ = ["LocalCluster", "start_local"]
