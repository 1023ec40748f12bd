"""The times of clusters of processes that tests start."""

from __future__ import annotations

from typing import Any

# Signs of life are quick, and it takes a machine that stalls for long to make somebody suspect. One
# that is killed is noticed by its connections all the same.
PATIENT: dict[str, Any] = {"heartbeat_s": 0.2, "suspicion_s": 15.0, "lease_s": 30.0}
