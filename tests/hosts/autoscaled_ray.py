"""A real Ray whose own autoscaler starts and ends nodes: raylets on one fake host, by Ray's fake
provider."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.autoscaler._private import fake_multi_node

from tests.hosts.fake_hosts import HERE, Network
from tests.hosts.ray_hosts import PYTHON, RayHosts, wait_until

_HEAD_ID = "f" * 51 + "00000"
_IDLE_MIN = 0.05
# What Ray's `fake_multinode` does for a laptop. An empty list stands for what is of no use here.
_EMPTY_LISTS = (
    "initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands",
    "head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files",
    "rsync_exclude", "rsync_filter",
)  # fmt: skip
_MOST = 8


class AutoscaledRay(RayHosts):
    """`kinds`: the resources of each kind of node, by name."""

    def __init__(
        self, network: Network, log_dir: Path, kinds: Mapping[str, Mapping[str, float]]
    ) -> None:
        super().__init__(network, log_dir, n_hosts=1)
        self._kinds = kinds
        self._env += (
            " AUTOSCALER_UPDATE_INTERVAL_S=1 RAY_FAKE_CLUSTER=1 RAY_enable_autoscaler_v2=1"
            f" RAY_CLOUD_INSTANCE_ID={_HEAD_ID} RAY_OVERRIDE_NODE_ID_FOR_TESTING={_HEAD_ID}"
        )

    def start(self) -> None:
        (a,) = self.hosts
        # Ray reads this file for every config, and its wheel lacks it
        provider = Path(fake_multi_node.__file__).parent
        a.run(f"cp -r {provider} /tmp/provider && echo '{{}}' > /tmp/provider/example.yaml")
        a.run(f"ip route add default via {HERE}")  # by which nodes find their own address
        a.run(f"mount --bind /tmp/provider {provider}")
        (a.root / "tmp/autoscaling.json").write_text(json.dumps(self._config()))
        self._starting[a.name] = a.bg(
            f"{self._env} RAY_NODE_TYPE_NAME=ray.head.default "
            f"{PYTHON} -m ray.scripts.scripts start --head --port 6379 --block "
            "--autoscaling-config=/tmp/autoscaling.json --include-dashboard=false --num-cpus 1 "
            f"--node-ip-address {a.ip} --object-store-memory 80000000 --disable-usage-stats",
            self._log_dir / "ray.log",
        )
        wait_until(lambda: self._is_up(), shows=self._logs)

    def _logs(self) -> dict[str, str]:
        """Also what the autoscaler and our actors say."""
        folder = self.hosts[0].root / "tmp/ray"
        paths = [*folder.glob("session_2*/logs/[mw]o[nr]*")]  # monitor, worker
        return super()._logs() | {path.name: path.read_text()[-1500:] for path in paths}

    def _is_up(self) -> bool:
        assert self._starting["a"].poll() is None, self._logs()
        return self.n_alive() == 1

    def _config(self) -> dict[str, Any]:
        types = {
            name: {
                "resources": {"CPU": 1, "object_store_memory": 80_000_000, **kind},
                "node_config": {},
                "min_workers": 0,
                "max_workers": _MOST,
            }
            for name, kind in self._kinds.items()
        }
        head = {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0}
        return {
            "cluster_name": "fake",
            "max_workers": _MOST,
            "idle_timeout_minutes": _IDLE_MIN,
            "upscaling_speed": 9999.0,
            "provider": {
                "type": "fake_multinode",
                "disable_node_updaters": True,
                "launch_multiple": True,
                "head_node_id": _HEAD_ID,
                "gcs_address": self.address,
            },
            "auth": {"ssh_user": "nobody"},
            "docker": {},
            "file_mounts": {},
            "file_mounts_sync_continuously": False,
            "head_node_type": "ray.head.default",
            "available_node_types": {"ray.head.default": head, **types},
            **{name: [] for name in _EMPTY_LISTS},
        }

    def until_up(self) -> None:
        """After `up_in_background`."""

        def is_up() -> bool:
            said = (self._log_dir / "up.log").read_text()
            assert '"failed"' not in said, said
            return '"ready"' in said

        wait_until(is_up, shows=self._logs)

    def n_raylets(self) -> int:
        """Of nodes beside the head, as the kernel knows them: Ray's own view comes later."""
        return len(self.pids(self.hosts[0], "/raylet")) - 1

    def until_raylets(self, n: int, since_s: float, within_s: float) -> float:
        """Wait for so many; how long after `since_s` that was."""
        wait_until(lambda: self.n_raylets() == n, within_s, 0.05, shows=self._logs)
        return time.monotonic() - since_s

    def up_in_background(self, topology: Mapping[str, Any]) -> None:
        (a,) = self.hosts
        path = a.root / "tmp/cluster.json"
        path.write_text(json.dumps(topology))
        command = shlex.join(["up", "--json", "--topology", "/tmp/cluster.json"])
        a.bg(f"exec {self._env} {PYTHON} -m twolane.cli {command}", self._log_dir / "up.log")
