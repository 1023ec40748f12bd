"""How decode attention is built, for either kind of pool."""

from dataclasses import dataclass
from enum import Enum

from twolane.engine.kernels.pages.kv_view import KVView


class Fp8Products(Enum):
    """What the tensor cores multiply where the pool is FP8."""

    HALVES = "halves"  # keys and values become float16 in registers, which loses nothing
    PARTS = "parts"  # FP8 as stored, by queries and weights in two FP8 parts each


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig:
    """Defaults are the best measured on an H200, for either kind of pool."""

    warps: int = 4
    stages: int = 3
    tensor_copy: bool = True
    merge_rows: int = 64  # partial answers of one head weighed at a time
    ahead: int = 2  # pages asked for before the wait, where launches overlap
    products: Fp8Products = Fp8Products.PARTS


def config_for(view: KVView) -> DecodeConfig:
    """What fits: at 32 bits a value, one plane of keys and one of values fill the shared memory."""
    if view.values.itemsize == 4:
        return DecodeConfig(warps=8, stages=1)
    return DecodeConfig()
