"""Opens the two ends of a transport by its name.

landings = open_landings(epoch, pool, config, memory)    # decode role: all, by name
open_outlet = OutletOpener(epoch, pool, config)          # prefill role
outlet = open_outlet(receiver_hello)

A pool is in host memory or on a device. What each transport does with it:

              host                               device
    cuda_ipc  -                                  the sender writes into the receiver's mapped pool
    shm       the sender writes into the pool    slots in pinned memory that both map
    unix tcp  bytes straight into pages          bytes into pinned slots, then into pages
    nixl      the sender's agent writes into the pool, over RDMA where there is some

Across hosts nixl comes before tcp if there is an RDMA card and the fabric is trusted. Without a
card our own tcp is several times as fast, and nixl is offered only where tcp is left out.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from twolane.kvtransfer.device import DeviceError, DeviceMemory, SentMemory, region_of
from twolane.kvtransfer.digests import DEVICE_DIGESTS, HOST_DIGESTS, Pool, agreed_digest
from twolane.kvtransfer.layouts.sources import MakeConvert, PageMaker, Source, WholePages
from twolane.kvtransfer.link.handshake import HOST
from twolane.kvtransfer.page_lane import (
    PLAIN_RECEIVER,
    PLAIN_SENDER,
    PageLane,
    PageLaneError,
    ReceiverLane,
    SenderLane,
)
from twolane.kvtransfer.transport import Landing, Outlet
from twolane.kvtransfer.transport_names import ONE_HOST_ONLY, TRANSPORTS, TRUSTED
from twolane.kvtransfer.transports.common.addresses import listen_tcp, listen_unix
from twolane.kvtransfer.transports.common.claims import LandingTable
from twolane.kvtransfer.transports.common.page_summer import DeviceSummer, HostSummer, PageSummer
from twolane.kvtransfer.transports.common.shared_memory import PoolMemory
from twolane.kvtransfer.transports.common.striped_outlet import Bundle
from twolane.kvtransfer.transports.mapped.ipc_landing import IpcLanding
from twolane.kvtransfer.transports.mapped.ipc_outlet import IpcOutlet
from twolane.kvtransfer.transports.mapped.shm_landing import ShmLanding
from twolane.kvtransfer.transports.mapped.shm_outlet import ShmOutlet
from twolane.kvtransfer.transports.nixl import agent
from twolane.kvtransfer.transports.nixl.agent import NixlError
from twolane.kvtransfer.transports.nixl.landing import NixlLanding
from twolane.kvtransfer.transports.nixl.outlet import NixlOutlet
from twolane.kvtransfer.transports.nixl.source import NixlSource, StagedPages, StoredPages
from twolane.kvtransfer.transports.stream.device_destination import DeviceDestination
from twolane.kvtransfer.transports.stream.landing import StreamLanding
from twolane.kvtransfer.transports.stream.outlet import StreamOutlet
from twolane.kvtransfer.transports.stream.sink import Destination, HostDestination
from twolane.kvtransfer.transports.stream.slot_outlet import SharedOutlet
from twolane.kvtransfer.transports.stream.source import DeviceSource, HostSource, PageSource
from twolane.layout import parse_layout
from twolane.rpc.listen import ListenError, is_loopback
from twolane.v1 import transfer_pb2

ENCRYPTED_SOCKETS = 4
_UNPROVABLE = "no proof that a sender has stopped writing crosses the network"
AnyPool = Pool | DeviceMemory

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportConfig:
    """Equal on all workers of a cluster, except for addresses."""

    transports: tuple[str, ...] = TRANSPORTS  # best first
    bind_host: str = "127.0.0.1"  # the tcp landing listens here ...
    advertise_host: str = ""  # ... and senders dial this; empty: bind_host
    ports: str = ""  # 7300-7399: one of these ports; empty: any
    checksums: bool | None = None  # None: on, but for those that are trusted
    sockets: int | None = None  # of unix and tcp; None: see `sockets_of`
    page_lane: PageLane = PageLane.PLAIN  # what protects tcp connections
    trusted_fabric: bool = False  # nixl may be used beyond this host: the fabric has no other users

    def __post_init__(self) -> None:
        unknown = set(self.transports) - set(TRANSPORTS)
        assert not unknown, f"transports {unknown}; there are {TRANSPORTS}"
        assert self.transports, "no transport"
        assert self.sockets is None or self.sockets >= 1

    def offered(self, pool: AnyPool) -> tuple[str, ...]:
        """The transports that pages of this pool may use."""
        is_host = isinstance(pool, np.ndarray)
        left_out = {"cuda_ipc"} if is_host else set[str]()
        is_slower = "tcp" in self.transports and not agent.has_fabric()
        is_readable = not (self.trusted_fabric or is_loopback(self.bind_host))
        if is_slower or is_readable or not agent.is_installed():
            left_out.add("nixl")
        return tuple(name for name in self.transports if name not in left_out)

    def sockets_of(self, transport: str) -> int:
        """From each sender to each receiver. Encryption has a thread of its own on each."""
        if self.sockets is not None:
            return self.sockets
        is_encrypted = transport == "tcp" and self.page_lane is PageLane.ENCRYPTED
        return ENCRYPTED_SOCKETS if is_encrypted else 1

    def sums(self, transport: str) -> bool:
        """Whether it compares checksums of pages."""
        return transport not in TRUSTED if self.checksums is None else self.checksums


def memory_kind(pool: AnyPool) -> str:
    """Its name in hellos."""
    return HOST if isinstance(pool, np.ndarray) else pool.kind


def open_landings(
    receiver_epoch: int, pool: AnyPool, config: TransportConfig, memory: PoolMemory | None = None
) -> dict[str, Landing]:
    """One landing for each transport. A pool in host memory has shm only if it is the beginning of
    `memory`.

    The caller closes them. Raises OSError or `ListenError` if one cannot listen; then none is open.
    """
    landings: dict[str, Landing] = {}
    try:
        for name in config.offered(pool):
            landing = _open_landing(name, receiver_epoch, pool, config, memory)
            if landing is not None:
                is_near = name in ONE_HOST_ONLY
                assert is_near or not landing.sender_writes, _UNPROVABLE  # guard: one host
                landings[name] = landing
    except (OSError, ListenError):
        for landing in landings.values():
            landing.close()
        raise
    return landings


def _open_landing(
    name: str,
    receiver_epoch: int,
    pool: AnyPool,
    config: TransportConfig,
    memory: PoolMemory | None,
) -> Landing | None:
    checksums = config.sums(name)
    if isinstance(pool, np.ndarray):
        if name == "shm":
            return None if memory is None else ShmLanding(pool, memory, checksums=checksums)
    elif name == "cuda_ipc":
        try:
            return IpcLanding(pool, checksums=checksums)
        except DeviceError as error:
            _log.warning("no cuda_ipc into this pool: %s", error)
            return None
    if name == "nixl":
        return _open_nixl(receiver_epoch, pool, config)
    listener, address = _listen_tcp(config) if name == "tcp" else listen_unix()
    table = LandingTable(checksums=checksums)
    try:
        if isinstance(pool, np.ndarray):
            place: Destination = HostDestination(pool, table, checksums=checksums)
        else:
            place = DeviceDestination(pool, table, checksums=checksums, has_rings=name == "shm")
    except OSError:
        listener.close()
        raise
    lane = ReceiverLane.draw(config.page_lane) if name == "tcp" else PLAIN_RECEIVER
    return StreamLanding(listener, address, receiver_epoch, place, lane=lane)


def _listen_tcp(config: TransportConfig) -> tuple[socket.socket, str]:
    return listen_tcp(config.bind_host, config.advertise_host, config.ports)


def _open_nixl(receiver_epoch: int, pool: AnyPool, config: TransportConfig) -> Landing | None:
    listener, address = _listen_tcp(config)
    regions = (region_of(pool),) if isinstance(pool, np.ndarray) else pool.regions
    summer: PageSummer = HostSummer(pool) if isinstance(pool, np.ndarray) else DeviceSummer(pool)
    page_bytes = pool.shape[1] if isinstance(pool, np.ndarray) else pool.page_bytes
    try:
        return NixlLanding(
            listener, address, receiver_epoch, regions, page_bytes, summer,
            checksums=config.sums("nixl"),
        )  # fmt: skip
    except NixlError as error:
        listener.close()
        summer.close()
        _log.warning("no nixl into this pool: %s", error)
        return None


class OutletOpener:
    """`opener(receiver_hello)`: opens an outlet of the transport that the receiver picked.

    Raises OSError if that does not work from here. The caller closes it.

    Pages of our `layout` are converted for a receiver with another layout; if its dtype differs
    too, by the entry of `converts` for that dtype, or by the device.
    """

    def __init__(
        self,
        sender_epoch: int,
        pool: AnyPool,
        config: TransportConfig,
        layout: str = "",
        converts: Mapping[str, MakeConvert] | None = None,
    ) -> None:
        self._epoch = sender_epoch
        self._pool = pool
        self._config = config
        self._layout = layout
        self._maker: PageMaker | None = None
        if "nixl" in config.offered(pool):
            with suppress(NixlError):  # reported when a receiver picks it; then another is taken
                agent.check_works()  # now, not while a receiver waits
        if isinstance(pool, np.ndarray):
            self._maker = PageMaker(pool, layout, converts)

    @property
    def makes_dtypes(self) -> tuple[str, ...]:
        """Dtypes that it can convert pages to (SenderHello)."""
        if self._maker is not None:
            return self._maker.makes_dtypes
        assert not isinstance(self._pool, np.ndarray)
        return self._pool.makes_dtypes(parse_layout(self._layout).dtype) if self._layout else ()

    @property
    def memory(self) -> str:
        """The kind of memory that it sends from."""
        return memory_kind(self._pool)

    @property
    def page_lane(self) -> PageLane:
        """The page lane of its tcp connections."""
        return self._config.page_lane

    @property
    def transports(self) -> tuple[str, ...]:
        """The transports that it offers, best first."""
        return self._config.offered(self._pool)

    def __call__(self, hello: transfer_pb2.ReceiverHello) -> Outlet:
        """Checksums are computed if the receiver compares them, by a digest that both have."""
        pool, address = self._pool, hello.transport_address
        is_host = isinstance(pool, np.ndarray)
        digest = agreed_digest(HOST_DIGESTS if is_host else DEVICE_DIGESTS, hello.checksums)
        if hello.transport == "shm":
            if isinstance(pool, np.ndarray):
                return ShmOutlet(address, self._source_for(hello), digest=digest)
            return SharedOutlet(
                address, self._epoch, hello.epoch, self._sent(pool, hello), digest=digest
            )
        if hello.transport == "cuda_ipc":
            if isinstance(pool, np.ndarray):
                raise DeviceError("pages of a host do not travel by cuda_ipc")
            return IpcOutlet(address, self._sent(pool, hello), digest=digest)
        if hello.transport == "nixl":
            source = self._nixl_source(hello, digest)
            return NixlOutlet(address, self._epoch, hello.epoch, source, digest=digest)
        lane = self._lane_to(hello)
        outlets: list[Outlet] = []
        try:
            for _ in range(self._config.sockets_of(hello.transport)):
                outlets.append(self._stream_outlet(hello, digest, lane))  # noqa: PERF401
        except OSError:
            for outlet in outlets:
                outlet.close()
            raise
        return outlets[0] if len(outlets) == 1 else Bundle(outlets)

    def _lane_to(self, hello: transfer_pb2.ReceiverHello) -> SenderLane:
        """Raises `PageLaneError` when it is not ours: no receiver talks us into less protection."""
        if hello.transport != "tcp":
            return PLAIN_SENDER
        theirs, ours = hello.page_lane or PageLane.PLAIN, self._config.page_lane
        if theirs != ours:  # guard: page lane
            raise PageLaneError(f"page_lane {theirs} at the receiver, {ours} here")
        return SenderLane(ours, hello.page_key)

    def _stream_outlet(
        self, hello: transfer_pb2.ReceiverHello, digest: str, lane: SenderLane
    ) -> Outlet:
        """One connection."""
        source = self._stream_of(hello, digest)
        return StreamOutlet(
            hello.transport, hello.transport_address, self._epoch, hello.epoch, source,
            digest=digest, lane=lane,
        )  # fmt: skip

    def _stream_of(self, hello: transfer_pb2.ReceiverHello, digest: str) -> PageSource:
        """The source of one connection."""
        if isinstance(self._pool, np.ndarray):
            return HostSource(self._source_for(hello), digest)
        return DeviceSource(self._sent(self._pool, hello), digest)

    def _sent(self, pool: DeviceMemory, hello: transfer_pb2.ReceiverHello) -> SentMemory:
        """A device's pages in that receiver's layout."""
        if not self._is_made(hello):
            return pool
        return pool.made(parse_layout(self._layout), parse_layout(hello.layout))

    def _is_made(self, hello: transfer_pb2.ReceiverHello) -> bool:
        """Whether the receiver's layout differs from ours."""
        return bool(self._layout) and hello.layout not in ("", self._layout)

    def _nixl_source(self, hello: transfer_pb2.ReceiverHello, digest: str) -> NixlSource:
        """Raises `NixlError` where NIXL does not work here."""
        agent.check_works()
        pool = self._pool
        if not isinstance(pool, np.ndarray):
            if self._is_made(hello):
                raise NixlError("pages that a device makes do not travel by nixl")
            summer = DeviceSummer(pool)
            return StoredPages(pool.regions, pool.page_bytes, summer, digest)
        source = self._source_for(hello)
        if not isinstance(source, WholePages):
            return StagedPages(source, digest)
        return StoredPages((region_of(pool),), pool.shape[1], HostSummer(pool), digest)

    def _source_for(self, hello: transfer_pb2.ReceiverHello) -> Source:
        assert self._maker is not None, "the receiver took pages of a device for pages of a host"
        return self._maker.source_for(hello.layout)
