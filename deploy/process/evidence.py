"""What a process leaves on its host's disk, so that the next agent can watch it and prove its end:
written before it opens any transport, again when it serves, and never removed by it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from twolane.deploy.process.handshake import Handle, Ready
from twolane.deploy.spec.spec_json import from_json, said
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec, WorkerSpec
from twolane.kvtransfer.link.process_identity import start_ticks

log = logging.getLogger(__name__)

# What may differ between two specs of a process that need not be replaced
_OF_ONE_START = frozenset(
    {"epoch", "routers", "state_dir", "admin_socket"}
    | {"port", "worker_port", "metrics_port", "http_port", "admin_port"}
    | {"fingerprint"}  # looked at before the start alone
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One incarnation. `ready` is None until it serves. The pid counts in `pid_namespace`."""

    name: str
    epoch: int  # 0: a router
    pid: int
    start_ticks: int
    boot_id: str
    pid_namespace: str
    digest: str
    routers: tuple[str, ...] = ()  # whom a worker announces itself to
    devices: tuple[str, ...] = ()
    pool: str = ""  # of a worker, as are its roles and its model
    roles: tuple[str, ...] = ()
    model_dir: str = ""
    ready: Ready | None = None

    @classmethod
    def of_this_process(cls, spec: ProcessSpec) -> Self:
        worker = None if isinstance(spec, RouterSpec) else spec
        return cls(
            name=spec.name,
            epoch=spec.epoch,
            pid=os.getpid(),
            start_ticks=start_ticks(os.getpid()),
            boot_id=boot_id(),
            pid_namespace=pid_namespace(),
            digest=digest(spec),
            routers=() if worker is None else worker.routers,
            devices=() if worker is None else worker.devices,
            pool="" if worker is None else worker.pool,
            roles=() if worker is None else worker.roles,
            model_dir="" if worker is None else str(worker.model.model_dir),
        )

    def serving(self, ready: Ready) -> Self:
        return replace(self, ready=ready)

    def handle(self, host_name: str) -> Handle:
        """Of one that serves."""
        assert self.ready is not None
        return Handle(name=self.name, epoch=self.epoch, host_name=host_name, **asdict(self.ready))

    @property
    def file_name(self) -> str:
        return file_name(self.name, self.epoch, self.pid)

    def is_of(self, name: str, epoch: int, pid: int) -> bool:
        """Whether it is of this process: a worker has an epoch, a router a name and a pid."""
        if epoch:
            return self.epoch == epoch
        return (self.name, self.epoch, self.pid) == (name, 0, pid)

    def write(self, state_dir: Path) -> None:
        """It is on disk on return. Raises OSError."""
        write_json(state_dir / self.file_name, asdict(self))


def file_name(name: str, epoch: int, pid: int) -> str:
    """Of a process' evidence."""
    return f"{epoch:016x}.json" if epoch else f"{name}-{pid}.json"


def json_files(folder: Path) -> list[Path]:
    """All that are there, readable or not. Raises OSError if that cannot be known."""
    if not folder.is_dir():
        return []
    # `glob` would find nothing without a free descriptor.
    return sorted(path for path in folder.iterdir() if path.suffix == ".json")


def read_evidence(state_dir: Path) -> Iterator[Evidence]:
    """All that can be read. A file that cannot, or is none, is logged and left out, so that nothing
    is proven by what is missing here: its file must be missing, too. Raises OSError."""
    for path in json_files(state_dir):
        try:
            yield from_json(Evidence, path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            log.error("%s cannot be read as evidence of a process: %s", path, error)


def write_json(path: Path, value: object) -> None:
    """Replace the file; the new one is on disk on return. Raises OSError."""
    draft = path.with_name(f"{path.name}.draft-{os.getpid()}")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def digest(spec: ProcessSpec) -> str:
    """Equal for specs of which one need not replace the other. A worker that may flip has the pool
    that it has come to, and the process that it began as. A key that a later version adds counts
    once it is set, so a controller of that version adopts what an earlier one has started."""
    if isinstance(spec, WorkerSpec) and spec.flips:
        settings = replace(spec.settings, worker_metrics_port=0)
        spec = replace(spec, roles=(), pool="", settings=settings)
    text = json.dumps(_lasting(said(spec)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(part) for key, part in value.items() if key not in _OF_ONE_START}
    return [_lasting(part) for part in value] if isinstance(value, list) else value
