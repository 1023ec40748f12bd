"""Raw memory of a GPU: one allocation that CUDA IPC can export, with a byte tensor view.

Torch's allocator returns parts of segments, which may be virtual memory that no peer can map.
"""

from __future__ import annotations

import ctypes

import torch

from twolane.engine.step import DevicePool


class RawMemory:
    """`n_bytes` on `device`, zeroed; on `cpu` (tests) plain memory. `close` frees it: no kernel may
    use it then, and no tensor of it may be used afterwards."""

    def __init__(self, n_bytes: int, device: torch.device) -> None:
        self.n_bytes = n_bytes
        self.device = device
        self._driver: ctypes.CDLL | None = None
        if device.type != "cuda":
            self.tensor = torch.zeros(n_bytes, dtype=torch.uint8)
            self.address = self.tensor.data_ptr()
            return
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.empty(1, device=device)  # make the device's context current on this thread
        self._driver = ctypes.CDLL("libcuda.so.1")
        pointer = ctypes.c_uint64()
        status = self._driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(n_bytes))
        if status:
            free, total = torch.cuda.mem_get_info(device)
            raise MemoryError(
                f"a pool of {n_bytes / 2**30:.1f} GiB; {free / 2**30:.1f} of "
                f"{total / 2**30:.1f} GiB are free on {device} (CUDA error {status}): "
                "set fewer --pages or --kv-bytes"
            )
        self.address = pointer.value
        self.tensor = tensor_of(DevicePool(device.index or 0, (self.address,), n_bytes))
        self.tensor.zero_()

    def close(self) -> None:
        """May be called twice."""
        if self._driver is None:
            return
        torch.cuda.synchronize(self.device)
        self.tensor = torch.empty(0, dtype=torch.uint8)
        driver, self._driver = self._driver, None
        status = driver.cuMemFree_v2(ctypes.c_uint64(self.address))
        if status:
            raise RuntimeError(f"cuMemFree of {self.n_bytes} bytes: CUDA error {status}")


def tensor_of(pool: DevicePool) -> torch.Tensor:
    """The bytes of a pool with one part, flat; valid as long as the pool is."""
    (address,) = pool.addresses
    device = torch.device("cuda", pool.device)
    return torch.as_tensor(_Exposed(address, pool.n_bytes), device=device)


class _Exposed:
    """The CUDA array interface, by which torch wraps foreign memory without a copy."""

    def __init__(self, address: int, n_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (n_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }
