"""Build options of decode attention, for both kinds of pool."""

from dataclasses import dataclass
from enum import Enum

from twolane.engine.kernels.pages.kv_view import KVView


class Fp8Products(Enum):
    """What the tensor cores multiply for FP8 pools."""

    HALVES = "halves"  # keys and values are converted to float16 in registers, without loss
    PARTS = "parts"  # FP8 as stored; queries and weights as two FP8 parts each


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeAttentionConfig:
    """The defaults are the best measured on an H200, for both kinds of pool. The tile is no option:
    one page of one head by all queries that share it (`decode_attention.py`, `decode_fp8.py`)."""

    warps: int = 4
    stages: int = 3
    tensor_copy: bool = True
    merge_rows: int = 64  # partial answers of one head merged at a time
    ahead: int = 2  # pages prefetched before the wait, if launches overlap
    products: Fp8Products = Fp8Products.PARTS


def config_for(view: KVView) -> DecodeAttentionConfig:
    """What fits: with 32-bit values, one plane of keys and one of values fill the shared memory."""
    if view.values.itemsize == 4:
        return DecodeAttentionConfig(warps=8, stages=1)
    return DecodeAttentionConfig()
