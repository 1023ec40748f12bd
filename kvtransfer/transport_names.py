"""The transports by name, and what holds for each. Light: options are checked against it."""

from __future__ import annotations

TRANSPORTS = ("cuda_ipc", "shm", "unix", "nixl", "tcp")  # best first
ONE_HOST_ONLY = frozenset({"cuda_ipc", "shm", "unix"})  # the others go over networks
ONE_KIND_ONLY = frozenset({"cuda_ipc", "shm"})  # pages of both are in the same kind of memory
TRUSTED = frozenset({"cuda_ipc"})  # no checksums by default: bytes stay on NVLink
