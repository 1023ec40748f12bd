"""Converts pages to another layout on the card that holds them: gathers, and may quantise.

    pool (one part per rank) --kernel--> staging --copies--> peer, pinned memory, checksums

Each copy stream has its own staging buffer, and orders everything that touches it: the buffer is
refilled when the copies out of it are done. No page is converted twice between two events.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from twolane.engine.kernels.pages.page_convert import (
    UNIT_BYTES,
    ConversionTable,
    convert_pages,
    convert_pages_to_fp8,
    fp8_tokens,
)
from twolane.kvtransfer.copy_plan import PageIds
from twolane.kvtransfer.layouts.gather import Gather, gather_of
from twolane.layout import DTYPE_BYTES, UNQUANTISED_DTYPES, Layout
from twolane.worker.cuda.page_parts import Part, Parts

FP8_DTYPE = "float8_e4m3fn"
STAGING_BYTES = 32 * 1024 * 1024  # at most, unless a page is larger: small enough for the L2 cache


def makes_dtypes(dtype: str) -> tuple[str, ...]:
    """The dtypes of pages that a card can produce from pages of `dtype`."""
    return (dtype, FP8_DTYPE) if dtype in UNQUANTISED_DTYPES else (dtype,)


class CudaPageConverter:
    """Converts pages of a pool of `source`'s layout, whose parts are at `addresses`, to
    `target`'s."""

    def __init__(
        self, addresses: Sequence[int], source: Layout, target: Layout, device: torch.device
    ) -> None:
        assert target.dtype in makes_dtypes(source.dtype)
        alike = replace(target, dtype=source.dtype)
        gather = gather_of(source, alike)
        unit = math.gcd(source.page_tokens, target.page_tokens)
        granule_bytes = gather.granule_bytes
        self.quantises = target.dtype != source.dtype
        if self.quantises:
            token_bytes = source.head_dim * DTYPE_BYTES[source.dtype]
            granule_bytes = fp8_tokens(unit) * token_bytes
        self.page_bytes = target.page_bytes
        self.device = device
        self._source, self._target = source, target
        self._address = addresses[0]
        self._table = table_of(
            gather,
            addresses,
            part_bytes=source.rank_page_bytes,
            granule_bytes=granule_bytes,
            units=target.page_tokens // unit,
            slots_a_page=source.page_tokens // unit,
            device=device,
        )

    def convert(self, slots: torch.Tensor, out: torch.Tensor, *, programs: int) -> None:
        """Fill `out` [n, page_bytes]; `slots` as from `Paging.sources`, int32."""
        size = self._source.rank_page_bytes
        rows = slots.view(len(out), -1)
        if not self.quantises:
            convert_pages(
                self._address, rows, self._table, page_bytes=size, out=out, programs=programs
            )
            return
        convert_pages_to_fp8(
            self._address,
            rows,
            self._table,
            page_bytes=size,
            out=out,
            dtype=getattr(torch, self._source.dtype),
            kv_heads=self._target.kv_heads,
            page_tokens=self._target.page_tokens,
            head_dim=self._target.head_dim,
            programs=programs,
        )


def table_of(
    gather: Gather,
    addresses: Sequence[int],
    *,
    part_bytes: int,
    granule_bytes: int,
    units: int,
    slots_a_page: int,
    device: torch.device,
) -> ConversionTable:
    """A whole page's gather as the kernels read it, cut into granules of `granule_bytes`."""
    cut, rest = divmod(gather.granule_bytes, granule_bytes)
    assert not rest
    assert part_bytes % gather.granule_bytes == 0, "no granule lies in two parts"
    start = gather.start * gather.granule_bytes
    away = np.asarray([address - addresses[0] for address in addresses], dtype=np.int64)
    base = start % part_bytes + away[start // part_bytes]
    base = base[:, None] + np.arange(cut, dtype=np.int64) * granule_bytes
    step = gather.step * gather.granule_bytes
    assert not (base % UNIT_BYTES).any()
    assert not (step % UNIT_BYTES).any()
    return ConversionTable(
        base=torch.from_numpy(base.reshape(-1) // UNIT_BYTES).to(device),
        unit=torch.from_numpy(np.repeat(gather.unit, cut).astype(np.int32)).to(device),
        step=torch.from_numpy(np.repeat(step // UNIT_BYTES, cut).astype(np.int32)).to(device),
        granule_bytes=granule_bytes,
        units=units,
        slots_a_page=slots_a_page,
    )


class Origin(Protocol):
    """What a copy stream copies out of."""

    def batches(
        self, src: PageIds, stream: torch.cuda.Stream
    ) -> Iterator[tuple[Parts, PageIds, slice]]:
        """For each batch: parts of a memory, pages in them, and the slice of `src` that they are,
        in order.

        They are ready where `stream` is. All work on a batch must be submitted to it before the
        next batch is requested.
        """
        ...

    def forget(self) -> None:
        """Pages of the pool may change from now on."""
        ...

    def close(self) -> None:
        """The stream has completed all its work."""
        ...


class Pool:
    """See `Origin`: pages as they are."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def batches(
        self, src: PageIds, stream: torch.cuda.Stream
    ) -> Iterator[tuple[Parts, PageIds, slice]]:
        yield self.parts, src, slice(0, len(src))

    def forget(self) -> None:
        """Does nothing: no copy is kept."""

    def close(self) -> None:
        """Does nothing: the engine owns the pool."""


class Staging:
    """See `Origin`: the converted pages of one copy stream. Used on that stream only."""

    def __init__(self, converter: CudaPageConverter, programs: int) -> None:
        self._converter = converter
        self._programs = programs
        self._most = max(1, STAGING_BYTES // converter.page_bytes)
        self._held = torch.empty(0, converter.page_bytes, dtype=torch.uint8)
        self._holds: PageIds | None = None  # the source of its pages

    def batches(
        self, src: PageIds, stream: torch.cuda.Stream
    ) -> Iterator[tuple[Parts, PageIds, slice]]:
        size = self._converter.page_bytes
        for at in range(0, len(src), self._most):
            span = slice(at, min(len(src), at + self._most))
            with torch.cuda.stream(stream):
                self._fill(src[span])
            part = Part(self._held.data_ptr(), 0, size, size)
            yield (part,), np.arange(span.stop - at, dtype=np.int64), span

    def forget(self) -> None:
        self._holds = None

    def close(self) -> None:
        self.forget()
        self._held = self._held[:0].clone()

    def _fill(self, src: PageIds) -> None:
        if self._holds is not None and np.array_equal(self._holds, src):
            return
        self._holds = None
        device = self._converter.device
        if len(self._held) < len(src):
            self._held = torch.empty(
                len(src), self._converter.page_bytes, dtype=torch.uint8, device=device
            )
        self._converter.convert(
            upload(src, device), self._held[: len(src)], programs=self._programs
        )
        self._holds = src.copy()


def upload(pages: PageIds, device: torch.device) -> torch.Tensor:
    """int32, uploaded before anything that is submitted to the stream later."""
    return torch.from_numpy(pages.astype(np.int32)).pin_memory().to(device, non_blocking=True)


def pinned_result(n: int) -> torch.Tensor:
    """[n] int64 in pinned memory, so that a copy to it is asynchronous."""
    return torch.empty(n, dtype=torch.int64, pin_memory=True)
