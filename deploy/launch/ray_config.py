"""Starts our own Ray on this machine, with the environment that it reads."""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path

OBJECT_STORE_BYTES = 80 * 1024 * 1024  # Ray's minimum; we do not use it


def start_ray(temp_dir: Path, *, n_actors: int, n_gpus: int) -> None:
    """Start a Ray that only this process uses: on the loopback, behind a token, with its files in
    `temp_dir`. Blocks for seconds. It ends at `ray.shutdown()` or with this process."""
    # Ray would keep a token in the home directory otherwise, and tell us about it.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_DEDUP_LOGS"] = "0"
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    ray.init(
        address="local",  # never an existing Ray, even if RAY_ADDRESS is set
        num_cpus=n_actors,  # Ray starts this many processes in advance for our actors
        num_gpus=n_gpus,  # actors that request none may see them, depending on Ray's version
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        logging_level="ERROR",
        _temp_dir=str(temp_dir),
        _node_ip_address="127.0.0.1",
    )
