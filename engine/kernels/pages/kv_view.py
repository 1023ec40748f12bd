"""The kernels' view of the KV pool: planes of `[page_tokens, head_dim]` in one flat tensor.

    page | layer | keys, values | kv head        plane = ((page * layers + layer) * 2 + kv)
    [64, head_dim] values [64 scales, FP8 only]          * kv_heads + head,
                                                 and begins at plane * plane_values

A page (all layers) is one contiguous run, scales included, so moving a page moves its scales.

In an FP8 pool a plane of values is transposed, `[head_dim, page_tokens]`: so in both products of
attention the summed dimension is contiguous, as Hopper's FP8 products require. Each token and head
has a float32 scale, and no byte of such a plane is ever NaN: non-finite values are stored as 0 with
a scale of NaN. Slots past a row's end may therefore be read with weight 0. This requires a pool
that started as zeros, and that pages from other workers come from such a pool.
"""

from dataclasses import dataclass

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from twolane.engine.model_files.fp8 import FP8

SCALE_BYTES = 4  # one float32 per token and head, after the values of an FP8 plane


@dataclass(frozen=True, slots=True, kw_only=True)
class KVView:
    """`values` is the whole pool, flat, in its dtype (float32, bfloat16, float16 or FP8 e4m3).

    Owns nothing: the owner of the pool keeps it alive. The base must be 16-byte aligned.
    """

    values: torch.Tensor
    layers: int
    kv_heads: int
    head_dim: int
    page_tokens: int = 64

    def __post_init__(self) -> None:
        assert self.values.dim() == 1
        assert self.values.data_ptr() % 16 == 0
        assert self.values.numel() % self.page_values == 0
        assert self.head_dim % 16 == 0
        assert self.page_tokens % 16 == 0

    @property
    def has_scales(self) -> bool:
        return self.values.dtype == FP8

    @property
    def plane_values(self) -> int:
        """The distance between planes, in elements of `values`."""
        scales = self.page_tokens * SCALE_BYTES if self.has_scales else 0
        return self.page_tokens * self.head_dim + scales

    @property
    def page_values(self) -> int:
        return self.layers * 2 * self.kv_heads * self.plane_values

    @property
    def n_pages(self) -> int:
        return self.values.numel() // self.page_values

    @property
    def scales(self) -> torch.Tensor:
        """The same bytes as float32; a plane's scales begin `page_tokens * head_dim` bytes in.
        Without scales, `values` itself (a kernel never reads it as scales)."""
        return self.values.view(torch.float32) if self.has_scales else self.values

    def planes(self) -> torch.Tensor:
        """`[pages, layers, 2, kv_heads, page_tokens, head_dim]`, a view; not for FP8 pools."""
        assert not self.has_scales
        return self._planes()

    def parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values `[pages, layers, kv_heads, page_tokens, head_dim]`: unscaled views."""
        planes = self._planes()
        keys, held = planes[:, :, 0], planes[:, :, 1]
        if self.has_scales:
            turned = (*held.shape[:3], self.head_dim, self.page_tokens)
            strides = (*held.stride()[:3], self.page_tokens, 1)
            held = held.as_strided(turned, strides).transpose(3, 4)
        return keys, held

    def _planes(self) -> torch.Tensor:
        plane = self.page_tokens * self.head_dim
        shape = (self.n_pages, self.layers, 2, self.kv_heads)
        held = self.values.view(*shape, self.plane_values)[..., :plane]
        strides = (*held.stride()[:-1], self.head_dim, 1)
        return held.as_strided((*shape, self.page_tokens, self.head_dim), strides)

    def plane_scales(self) -> torch.Tensor:
        """`[pages, layers, 2, kv_heads, page_tokens]` float32, a view; FP8 only."""
        shape = (self.n_pages, self.layers, 2, self.kv_heads, self.plane_values // SCALE_BYTES)
        return self.scales.view(shape)[..., -self.page_tokens :]

    @property
    def has_descriptor(self) -> bool:
        """Whether planes are aligned to rows of a matrix, as tensor descriptors require, and the
        numbers of all rows fit an int32: the narrowest rows of an FP8 pool have 64 bytes, so one
        beyond 128 GiB is read without descriptors."""
        on_grid = self.plane_values % self.head_dim == 0 and self.head_dim <= 256
        on_grid &= not self.has_scales or self.plane_values % self.page_tokens == 0
        return on_grid and self.values.numel() // min(self.head_dim, self.page_tokens) < 2**31

    def descriptor(self, dim_pad: int) -> TensorDescriptor:
        """One 2-D descriptor of the whole pool: rows of head_dim, a block is one plane.

        Columns from head_dim to dim_pad read as zero. A plane has `plane_values / head_dim` rows.
        """
        rows = self.values.numel() // self.head_dim
        box = [self.page_tokens, dim_pad]
        return TensorDescriptor(self.values, [rows, self.head_dim], [self.head_dim, 1], box)

    def transposed_descriptor(self) -> TensorDescriptor:
        """The same for an FP8 pool's values: rows of page_tokens, a block is one transposed
        plane."""
        assert self.has_scales
        rows = self.values.numel() // self.page_tokens
        box = [self.head_dim, self.page_tokens]
        return TensorDescriptor(self.values, [rows, self.page_tokens], [self.page_tokens, 1], box)

    def scales_descriptor(self) -> TensorDescriptor:
        """Rows of page_tokens; a plane's scales are at row `page_tokens * head_dim / 4 /
        page_tokens` of it."""
        scales = self.scales
        shape = [scales.numel() // self.page_tokens, self.page_tokens]
        return TensorDescriptor(scales, shape, [self.page_tokens, 1], [1, self.page_tokens])


def allocate_view(
    n_pages: int,
    *,
    layers: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device | str,
    page_tokens: int = 64,
) -> KVView:
    """A zeroed pool in torch's memory, for tests and benchmarks."""
    plane = page_tokens * (head_dim + (SCALE_BYTES if dtype == FP8 else 0))
    size = n_pages * layers * 2 * kv_heads * plane
    raw = torch.zeros(size * dtype.itemsize, dtype=torch.uint8, device=device)
    return KVView(
        values=raw.view(dtype),
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        page_tokens=page_tokens,
    )
