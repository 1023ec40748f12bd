"""Makes the calls of a library that a dry run finds, so that it loads its kernels before the first
pass needs them.

    dry run            finds a product, finds another ... --->
    library thread          calls the library, with tensors of that shape ... --->  | passes
    main thread        weights ------------------------------------------>          |

At its first product, and at the first that takes another kernel, cuBLAS spends 5 to 100 ms loading:
0.4 s in all for an 8B model. Meanwhile it needs no interpreter lock, which the dry run always does.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch

from twolane.engine.model_files.fp8 import Fp8Rows


class LibraryCalls:
    """Makes each call once, on a thread of its own, until `close`. A call takes the memory of its
    operands while it is made: 1 GB for the head of an 8B model."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(1, "library")
        self._calls: dict[tuple[object, ...], Future[None]] = {}

    def take(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        """Make that call, with uninitialised tensors of the device in place of those on `meta`."""
        call = (function, *map(_shape, arguments), *((k, _shape(v)) for k, v in options.items()))
        if call not in self._calls:
            self._calls[call] = self._thread.submit(self._make, function, arguments, options)

    def wait(self) -> None:
        """Wait until all are made, when none will be taken any more. Their memory is the device's
        again, but for a workspace, and what the library keeps for a thread is there for the one
        that calls it next."""
        self._thread.shutdown()
        for call in self._calls.values():
            call.result()
        if self._stream is not None:
            self._stream.synchronize()
            torch.cuda.empty_cache()

    def close(self) -> None:
        """Wait for the call that has begun, and drop the others."""
        self._thread.shutdown(cancel_futures=True)

    def _make(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        # Little memory has several errors. A pass makes the same call later, and raises what stays.
        with suppress(RuntimeError), torch.inference_mode(), torch.cuda.stream(self._stream):
            on_device = [self._in_place_of(value) for value in arguments]
            function(*on_device, **{k: self._in_place_of(v) for k, v in options.items()})

    def _in_place_of(self, value: Any) -> Any:
        if isinstance(value, Fp8Rows):
            return Fp8Rows.empty(*value.shape, device=self._device)
        if isinstance(value, torch.Tensor):
            return torch.empty(value.shape, dtype=value.dtype, device=self._device)
        return value


def _shape(value: Any) -> object:
    """Equal for what the library treats alike."""
    if isinstance(value, torch.Tensor | Fp8Rows):
        return type(value), tuple(value.shape), getattr(value, "dtype", None)
    return value
