"""The few CUDA driver calls that torch does not offer: contexts of threads, memory of peers, pinned
memory that is not torch's, copies by the card's copy engines. Uses ctypes, so nothing to install.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache

_HANDLE_BYTES = 64
EXPORT_BYTES = _HANDLE_BYTES + 8  # handle and offset
_LAZY_PEER_ACCESS = 1
_PORTABLE, _MAPPED = 1, 2
_ALREADY_ENABLED = 704
_UUID_BYTES = 16
_NOT_READY = 600
_NO_TIMING = 2  # event flag
_STREAM_ORDER = 1  # a batch's sources are read in stream order
_LEAST_SHARE = 2  # copies that justify another stream

CopyCommands = tuple[list[int], list[int], list[int]]  # targets, sources, bytes


class CudaError(Exception):
    """A call was refused: names the call and CUDA's error."""


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_byte * _HANDLE_BYTES),)


class _Uuid(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * _UUID_BYTES),)


class Context:
    """The primary context of one device (by its ordinal in this process), which torch uses too."""

    def __init__(self, device: int) -> None:
        self.device = device
        self._driver = _driver()
        _check(self._driver.cuInit(0), "cuInit")
        self._raw = self._primary(device)

    def enter(self) -> None:
        """Make it current on this thread."""
        _check(self._driver.cuCtxSetCurrent(self._raw), "cuCtxSetCurrent")

    @property
    def uuid(self) -> str:
        return self._uuid(self.device)

    def reach(self, uuid: str) -> None:
        """Make that device's memory in this process writable from here. Raises `CudaError`."""
        peer = next((i for i in range(self._n_devices()) if self._uuid(i) == uuid), None)
        if peer is None or peer == self.device:
            return
        self.enter()
        status = self._driver.cuCtxEnablePeerAccess(self._primary(peer), 0)
        if status != _ALREADY_ENABLED:
            _check(status, "cuCtxEnablePeerAccess")

    def _primary(self, device: int) -> ctypes.c_void_p:
        raw = ctypes.c_void_p()
        status = self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(raw), self._handle(device))
        _check(status, "cuDevicePrimaryCtxRetain")
        return raw

    def _handle(self, device: int) -> ctypes.c_int:
        handle = ctypes.c_int()
        _check(self._driver.cuDeviceGet(ctypes.byref(handle), device), "cuDeviceGet")
        return handle

    def _n_devices(self) -> int:
        n = ctypes.c_int()
        _check(self._driver.cuDeviceGetCount(ctypes.byref(n)), "cuDeviceGetCount")
        return n.value

    def _uuid(self, device: int) -> str:
        uuid = _Uuid()
        status = self._driver.cuDeviceGetUuid_v2(ctypes.byref(uuid), self._handle(device))
        _check(status, "cuDeviceGetUuid")
        return bytes(uuid).hex()


def export_memory(address: int) -> bytes:
    """The handle of the allocation that contains the address, and the offset in it."""
    driver = _driver()
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    _check(
        driver.cuMemGetAddressRange_v2(
            ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address)
        ),
        "cuMemGetAddressRange",
    )
    handle = _Handle()
    _check(driver.cuIpcGetMemHandle(ctypes.byref(handle), base), "cuIpcGetMemHandle")
    return bytes(handle) + (address - base.value).to_bytes(8, "little")


def open_memory(exported: bytes) -> int:
    """The address here of what another process exported; a second call returns the same address."""
    handle = _Handle.from_buffer_copy(exported[:_HANDLE_BYTES])
    pointer = ctypes.c_uint64()
    _check(
        _driver().cuIpcOpenMemHandle_v2(
            ctypes.byref(pointer), handle, ctypes.c_uint(_LAZY_PEER_ACCESS)
        ),
        "cuIpcOpenMemHandle",
    )
    return pointer.value + int.from_bytes(exported[_HANDLE_BYTES:], "little")


def close_memory(exported: bytes, address: int) -> None:
    """Call once for each `open_memory`, when nothing in this process uses it any more."""
    base = address - int.from_bytes(exported[_HANDLE_BYTES:], "little")
    _check(_driver().cuIpcCloseMemHandle(ctypes.c_uint64(base)), "cuIpcCloseMemHandle")


def pin(address: int, n_bytes: int) -> None:
    """Pin host memory, so that copies to and from it are asynchronous."""
    flags = ctypes.c_uint(_PORTABLE | _MAPPED)
    status = _driver().cuMemHostRegister_v2(
        ctypes.c_void_p(address), ctypes.c_size_t(n_bytes), flags
    )
    _check(status, f"cuMemHostRegister of {n_bytes} bytes")


def unpin(address: int) -> None:
    """Call when no copy uses it any more."""
    _check(_driver().cuMemHostUnregister(ctypes.c_void_p(address)), "cuMemHostUnregister")


class Event:
    """A point on streams of this thread's context, recorded any number of times."""

    def __init__(self) -> None:
        self._raw = ctypes.c_void_p()
        self._driver = _driver()
        status = self._driver.cuEventCreate(ctypes.byref(self._raw), ctypes.c_uint(_NO_TIMING))
        _check(status, "cuEventCreate")

    def __del__(self) -> None:
        if self._raw:
            self._driver.cuEventDestroy_v2(self._raw)

    def record(self, stream: int) -> None:
        _check(self._driver.cuEventRecord(self._raw, ctypes.c_void_p(stream)), "cuEventRecord")

    def make_wait(self, stream: int) -> None:
        """Later work of that stream waits for it."""
        status = self._driver.cuStreamWaitEvent(
            ctypes.c_void_p(stream), self._raw, ctypes.c_uint(0)
        )
        _check(status, "cuStreamWaitEvent")

    def is_done(self) -> bool:
        """Whether the device has passed it. Raises `CudaError` if work before it failed."""
        status = self._driver.cuEventQuery(self._raw)
        if status == _NOT_READY:
            return False
        _check(status, "cuEventQuery")
        return True


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _BatchAttributes(ctypes.Structure):
    _fields_ = (
        ("order", ctypes.c_int),
        ("source", _Location),
        ("target", _Location),
        ("flags", ctypes.c_uint),
    )


class Copies:
    """Copies by the copy engines, in the order of one stream, between any addresses of host and
    devices.

    One call submits many, which run on a few streams in parallel: the launch cost of one copy
    overlaps with other copies (measured over NVLink, 1,024 pages of 768 KiB: 344 GB/s; sequentially
    151, of 390). `side_streams` start after the earlier work of the stream, which waits for them. A
    driver older than 13.0 gets the copies one by one.

    Not for the default stream: CUDA refuses batches there as an invalid value.
    """

    def __init__(self, stream: int, side_streams: Sequence[int] = ()) -> None:
        assert all((stream, *side_streams)), "the default stream takes no batches of copies"
        driver = _driver()
        self._streams = (stream, *side_streams)
        self._events = [Event() for _ in self._streams]
        attributes = ctypes.byref(_BatchAttributes(order=_STREAM_ORDER))
        self._attributes = (attributes, ctypes.byref(ctypes.c_size_t(0)), ctypes.c_size_t(1))
        self._batch = getattr(driver, "cuMemcpyBatchAsync_v2", None)
        self._one = driver.cuMemcpyAsync
        self._one.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]

    def submit(self, copies: CopyCommands) -> None:
        """Submit copies; returns at once. Even if `CudaError` is raised, the stream waits for those
        submitted."""
        targets, sources, sizes = copies
        n_streams = min(len(self._streams), -(-len(targets) // _LEAST_SHARE))
        if n_streams > 1:
            self._events[0].record(self._streams[0])
        try:
            for i, stream in enumerate(self._streams[:n_streams]):
                if i:
                    self._events[0].make_wait(stream)  # guard: side by side
                share = slice(i, None, n_streams)
                self._submit(targets[share], sources[share], sizes[share], stream)
        finally:
            if n_streams > 1:
                self._join(n_streams)

    def _submit(
        self, targets: list[int], sources: list[int], sizes: list[int], stream: int
    ) -> None:
        on = ctypes.c_void_p(stream)
        if self._batch is None:
            for copy in zip(targets, sources, sizes, strict=True):
                _check(self._one(*copy, on), "cuMemcpyAsync")
            return
        n = len(targets)
        columns = array("Q", targets + sources + sizes)
        at, _ = columns.buffer_info()
        step = n * columns.itemsize
        status = self._batch(
            ctypes.c_void_p(at),
            ctypes.c_void_p(at + step),
            ctypes.c_void_p(at + 2 * step),
            ctypes.c_size_t(n),
            *self._attributes,
            on,
        )
        _check(status, "cuMemcpyBatchAsync")

    def close(self) -> None:
        """No copy may be in flight. May be called twice."""
        self._events.clear()

    def _join(self, n_streams: int) -> None:
        """Make the stream wait for every side stream, even if waiting for one of them fails."""
        with ExitStack() as every:
            for i in range(1, n_streams):
                event = self._events[i]
                every.callback(event.make_wait, self._streams[0])  # guard: side by side
                every.callback(event.record, self._streams[i])


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(status: int, call: str) -> None:
    if status:
        raise CudaError(f"{call}: CUDA error {status}")
