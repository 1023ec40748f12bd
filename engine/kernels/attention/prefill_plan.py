"""The query tiles of a prefill step: each row is cut into tiles, the costliest first."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

TILE_RECORD = 4  # int32s per tile: row, first packed token, end of the row's tokens, first position


def plan_prefill(
    starts: Sequence[int], lengths: Sequence[int], *, block_tokens: int, window: int = 0
) -> npt.NDArray[np.int32]:
    """`[tiles, 4]` for rows of `lengths` new tokens, packed in order, from positions `starts` on.

    Tiles with the most keys come first, so that the last to finish are short. A tile never spans
    two rows.
    """
    new = np.asarray(lengths, np.int64)
    first = np.asarray(starts, np.int64)
    counts = -(-new // block_tokens)
    row = np.repeat(np.arange(len(new)), counts)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    offset = np.cumsum(new) - new
    position = first[row] + nth * block_tokens
    keys = np.minimum(position + block_tokens, (first + new)[row])
    if window:
        keys = np.minimum(keys, window + block_tokens)
    tiles = np.stack(
        [row, offset[row] + nth * block_tokens, (offset + new)[row], position], axis=1
    ).astype(np.int32)
    return tiles[np.argsort(-keys, kind="stable")]
