"""The few calls of CUDA's driver that torch has none for: contexts of threads, memory of peers,
pinned memory that is not torch's, copies by the card's copy engines. By ctypes, nothing to install.
"""

from __future__ import annotations

import ctypes

_HANDLE_BYTES = 64
EXPORT_BYTES = _HANDLE_BYTES + 8  # and the offset
_LAZY_PEER_ACCESS = 1
_PORTABLE, _MAPPED = 1, 2
_ALREADY_ENABLED = 704
_UUID_BYTES = 16


class CudaError(Exception):
    """A call was refused: names it, and CUDA's error."""


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_byte * _HANDLE_BYTES),)


class _Uuid(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * _UUID_BYTES),)


class Context:
    """The context that torch uses too, of one device by its ordinal in this process."""

    def __init__(self, device: int) -> None:
        self.device = device
        self._driver = _driver()
        _check(self._driver.cuInit(0), "cuInit")
        self._raw = self._primary(device)

    def enter(self) -> None:
        """Driver calls of this thread are for it from now on."""
        _check(self._driver.cuCtxSetCurrent(self._raw), "cuCtxSetCurrent")

    @property
    def uuid(self) -> str:
        return self._uuid(self.device)

    def reach(self, uuid: str) -> None:
        """Make that device's memory of this process writable from here. Raises `CudaError`."""
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
    """The handle of the allocation that holds the address, and how far in it lies."""
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
    """The address here of what another process exported; twice gives the same address."""
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
    """Once for each `open_memory`; nothing of this process uses it any more."""
    base = address - int.from_bytes(exported[_HANDLE_BYTES:], "little")
    _check(_driver().cuIpcCloseMemHandle(ctypes.c_uint64(base)), "cuIpcCloseMemHandle")


def pin(address: int, n_bytes: int) -> None:
    """Host memory that copies may go to and from while nobody waits."""
    flags = ctypes.c_uint(_PORTABLE | _MAPPED)
    status = _driver().cuMemHostRegister_v2(
        ctypes.c_void_p(address), ctypes.c_size_t(n_bytes), flags
    )
    _check(status, f"cuMemHostRegister of {n_bytes} bytes")


def unpin(address: int) -> None:
    """No copy uses it any more."""
    _check(_driver().cuMemHostUnregister(ctypes.c_void_p(address)), "cuMemHostUnregister")


class Copies:
    """Copies by the copy engines, on one stream, between any two addresses of host and devices."""

    def __init__(self, stream: int) -> None:
        self._call = _driver().cuMemcpyAsync
        self._call.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
        self._stream = ctypes.c_void_p(stream)

    def copy(self, target: int, source: int, n_bytes: int) -> None:
        """Returns at once."""
        _check(self._call(target, source, n_bytes, self._stream), "cuMemcpyAsync")


def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(status: int, call: str) -> None:
    if status:
        raise CudaError(f"{call}: CUDA error {status}")
