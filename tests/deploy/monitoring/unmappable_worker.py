"""`python -m tests.deploy.monitoring.unmappable_worker worker …`: a worker whose memory no other
process can map, as where a container's profile forbids that. Pages do not come to it by shm."""

from __future__ import annotations

from twolane.deploy.__main__ import main
from twolane.kvtransfer.transports.common.shared_memory import PoolMemory

if __name__ == "__main__":
    make = PoolMemory.__init__

    def make_elsewhere(self: PoolMemory, nbytes: int, name: str) -> None:
        make(self, nbytes, name)
        self.address = f"/proc/self/mem:0:{nbytes}"

    PoolMemory.__init__ = make_elsewhere  # type: ignore[method-assign]
    main(prog_name="worker")
