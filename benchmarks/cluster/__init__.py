"""Whole clusters: start-up, idle latency, killed workers, overload."""
