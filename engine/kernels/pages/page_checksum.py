"""64-bit checksums of pages in device memory: equal to `twolane.kvtransfer.digests.mix64`.

Bytes: each page read once, 16 bytes per thread; 8 bytes per page and part added atomically. The
checksum does not depend on the order of additions, so it is reproducible.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import torch
import triton
import triton.language as tl

from twolane.engine.kernels.launch import launch
from twolane.engine.kernels.sizes import cdiv

BLOCK = 4096  # words of 8 bytes per iteration
_STEP: tl.constexpr = tl.constexpr(0x9E3779B97F4A7C15)  # the mixing of splitmix64
_FIRST: tl.constexpr = tl.constexpr(0xBF58476D1CE4E5B9)
_SECOND: tl.constexpr = tl.constexpr(0x94D049BB133111EB)


@triton.jit(do_not_specialize=["n_pages"])
def _checksum_kernel(
    address, pages, sums, n_pages, page_words, stride_words, words_before, BLOCK: tl.constexpr
):
    pool = tl.multiple_of(address.to(tl.uint64).to(tl.pointer_type(tl.uint64)), 16)
    parts = tl.cdiv(page_words, BLOCK)
    for task in range(tl.program_id(0), n_pages * parts, tl.num_programs(0)):
        nth = task // parts
        word = (task % parts) * BLOCK + tl.arange(0, BLOCK)
        keep = word < page_words
        first = tl.load(pages + nth).to(tl.int64) * stride_words
        x = tl.load(pool + first + word, mask=keep, other=0)
        x += (word + 1 + words_before).to(tl.uint64) * _STEP
        x = (x ^ (x >> 30)) * _FIRST
        x = (x ^ (x >> 27)) * _SECOND
        x = x ^ (x >> 31)
        total = tl.sum(tl.where(keep, x, 0).to(tl.int64, bitcast=True), 0)
        tl.atomic_add(sums + nth, total)


def checksum_pages(
    address: int,
    pages: torch.Tensor,
    *,
    page_bytes: int,
    out: torch.Tensor,
    stride: int = 0,
    bytes_before: int = 0,
    programs: int = 132,
) -> None:
    """out[i] += the checksum of page pages[i]; int32 pages, int64 out (bits of uint64), both on the
    device that runs the kernel.

    `address` is of page 0, 16-byte aligned; pages are `stride` apart (0: adjacent). If they are
    parts of larger pages, `bytes_before` is the offset of the part: the checksums of all parts add
    up to the checksum of the whole. `programs` bounds how much of the device is used.
    """
    stride = stride or page_bytes
    assert page_bytes % 128 == stride % 128 == bytes_before % 128 == 0
    assert address % 16 == 0
    assert pages.dtype == torch.int32
    assert out.dtype == torch.int64
    assert out.shape == pages.shape
    if len(pages) == 0:
        return
    words = page_bytes // 8
    tasks = len(pages) * cdiv(words, BLOCK)
    launch(_checksum_kernel, (min(programs, tasks),))(
        address,
        pages,
        out,
        len(pages),
        words,
        stride // 8,
        bytes_before // 8,
        BLOCK=BLOCK,
        num_warps=8,
    )
