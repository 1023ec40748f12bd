"""Copies scattered pages by index, within a card or from a peer's memory.

Bytes: each page read once and written once, 16 bytes per thread. Peers' pools have no tensor in
this process, so pools are passed by address; `tl.multiple_of` keeps the accesses 128 bits wide.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import torch
import triton
import triton.language as tl

from twolane.engine.kernels.launch import launch
from twolane.engine.kernels.sizes import cdiv

BLOCK = 4096  # int64s per iteration: 32 KiB


@triton.jit(do_not_specialize=["n_pages"])
def _page_copy_kernel(
    source_address,
    target_address,
    source_pages,
    target_pages,
    n_pages,
    page_words,
    source_words,
    target_words,
    BLOCK: tl.constexpr,
):
    source = tl.multiple_of(source_address.to(tl.uint64).to(tl.pointer_type(tl.int64)), 16)
    target = tl.multiple_of(target_address.to(tl.uint64).to(tl.pointer_type(tl.int64)), 16)
    parts = tl.cdiv(page_words, BLOCK)
    for task in range(tl.program_id(0), n_pages * parts, tl.num_programs(0)):
        nth = task // parts
        word = (task % parts) * BLOCK + tl.arange(0, BLOCK)
        keep = word < page_words
        from_page = tl.load(source_pages + nth).to(tl.int64) * source_words
        to_page = tl.load(target_pages + nth).to(tl.int64) * target_words
        held = tl.load(source + from_page + word, mask=keep)
        tl.store(target + to_page + word, held, mask=keep)


def copy_pages(
    source_address: int,
    target_address: int,
    source_pages: torch.Tensor,
    target_pages: torch.Tensor,
    *,
    page_bytes: int,
    source_stride: int = 0,
    target_stride: int = 0,
    programs: int = 264,
) -> None:
    """Copy page source_pages[i] of one pool to target_pages[i] of another; both int32, on the
    device that runs the kernel. Addresses are of page 0, 16-byte aligned, accessible from this
    device. Pages that are written must not be among those read. Pages are their stride apart (0:
    adjacent). `programs` bounds how much of the device is used."""
    source_stride, target_stride = source_stride or page_bytes, target_stride or page_bytes
    assert page_bytes % 128 == source_stride % 128 == target_stride % 128 == 0
    assert source_address % 16 == 0
    assert target_address % 16 == 0
    assert source_pages.dtype == target_pages.dtype == torch.int32
    assert source_pages.shape == target_pages.shape
    if len(source_pages) == 0:
        return
    words = page_bytes // 8
    tasks = len(source_pages) * cdiv(words, BLOCK)
    launch(_page_copy_kernel, (min(programs, tasks),))(
        source_address,
        target_address,
        source_pages,
        target_pages,
        len(source_pages),
        words,
        source_stride // 8,
        target_stride // 8,
        BLOCK=BLOCK,
        num_warps=8,
    )
