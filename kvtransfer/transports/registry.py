"""Names of transports to their two ends.

landings = open_landings(epoch, pool, config, memory)    # decode role: all, by name
open_outlet = OutletOpener(epoch, pool, config)          # prefill role
outlet = open_outlet(receiver_hello)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvtransfer.checksum import Pool
from kvtransfer.sources import MakeConvert, PageMaker
from kvtransfer.transports.addresses import listen_tcp, listen_unix
from kvtransfer.transports.base import Landing, Outlet
from kvtransfer.transports.pool_memory import PoolMemory
from kvtransfer.transports.shm_landing import ShmLanding
from kvtransfer.transports.shm_outlet import ShmOutlet
from kvtransfer.transports.stream_landing import StreamLanding
from kvtransfer.transports.stream_outlet import StreamOutlet
from twolane.v1 import transfer_pb2

CPU_TRANSPORTS = ("shm", "unix", "tcp")  # best first


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportConfig:
    """The same on every worker of a cluster, addresses aside."""

    transports: tuple[str, ...] = CPU_TRANSPORTS  # best first
    bind_host: str = "127.0.0.1"  # the tcp landing listens here ...
    advertise_host: str = ""  # ... and tells this; empty: bind_host
    checksums: bool = True

    def __post_init__(self) -> None:
        unknown = set(self.transports) - set(CPU_TRANSPORTS)
        assert not unknown, f"transports {unknown}; there are {CPU_TRANSPORTS}"
        assert self.transports, "no transport"


def open_landings(
    receiver_epoch: int, pool: Pool, config: TransportConfig, memory: PoolMemory | None = None
) -> dict[str, Landing]:
    """One landing a transport; shm only when the pool is the beginning of `memory`.

    The caller closes them. Raises OSError when an address cannot be had; then none is open.
    """
    landings: dict[str, Landing] = {}
    try:
        for name in config.transports:
            if name == "shm":
                if memory is not None:
                    landings[name] = ShmLanding(pool, memory, checksums=config.checksums)
                continue
            is_unix = name == "unix"
            host = config.bind_host
            listener, address = (
                listen_unix() if is_unix else listen_tcp(host, config.advertise_host)
            )
            landings[name] = StreamLanding(
                listener, address, receiver_epoch, pool, checksums=config.checksums
            )
    except OSError:
        for landing in landings.values():
            landing.close()
        raise
    return landings


class OutletOpener:
    """`opener(receiver_hello)`: an outlet of the transport that the receiver picked.

    Raises OSError when that does not work from here. The caller closes it.

    For a receiver that lays its pages out differently they are made of ours, whose `layout` this
    is: with `converts` of its dtype, where that differs too.
    """

    def __init__(
        self,
        sender_epoch: int,
        pool: Pool,
        config: TransportConfig,
        layout: str = "",
        converts: Mapping[str, MakeConvert] | None = None,
    ) -> None:
        self._epoch = sender_epoch
        self._config = config
        self._maker = PageMaker(pool, layout, converts)

    @property
    def makes_dtypes(self) -> tuple[str, ...]:
        """Of pages that it can make for others (SenderHello)."""
        return self._maker.makes_dtypes

    def __call__(self, hello: transfer_pb2.ReceiverHello) -> Outlet:
        checksums, source = self._config.checksums, self._maker.source_for(hello.layout)
        if hello.transport == "shm":
            return ShmOutlet(hello.transport_address, source, checksums=checksums)
        return StreamOutlet(
            hello.transport,
            hello.transport_address,
            self._epoch,
            hello.epoch,
            source,
            checksums=checksums,
        )
