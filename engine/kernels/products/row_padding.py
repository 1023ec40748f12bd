"""Memory behind the rows of a product, which the card reads instead of the end of a tensor."""

import torch

from twolane.engine.kernels.products.few_rows_plan import MAX_ROWS, pad_rows
from twolane.engine.model_files.fp8 import FP8, Fp8Rows


def padded_empty(
    like: torch.Tensor, rows: int, width: int, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """An uninitialised `[rows, width]` with the device of `like`, and its dtype unless another is
    given. If it has few rows, the memory behind it is padding (see `rows_with_padding`)."""
    n = pad_rows(rows) if rows <= MAX_ROWS else rows
    return like.new_empty((n, width), dtype=dtype or like.dtype)[:rows]


def padded_fp8(like: torch.Tensor, rows: int, width: int) -> Fp8Rows:
    """The same in FP8, with scales."""
    values = padded_empty(like, rows, width, FP8)
    return Fp8Rows(values, like.new_empty(rows, dtype=torch.float32))


def rows_with_padding(x: torch.Tensor, rows_pad: int) -> int:
    """How many rows may be read from where x begins: x and those that follow it in its storage, at
    most `rows_pad` unless x has more.

    The card fills rows past the end of a tensor with zeros more slowly than it reads them. What is
    in them does not matter: each row's product is a column of its own, and theirs are not stored.
    """
    rows, inner = x.shape
    if rows >= rows_pad:
        return rows
    values = x.untyped_storage().nbytes() // x.itemsize - x.storage_offset()
    return max(rows, min(rows_pad, (values - inner) // x.stride(0) + 1))
