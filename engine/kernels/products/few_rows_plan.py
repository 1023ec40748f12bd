"""Plans a product of few rows for a card: tiles of outputs, shares of programs, ring stages.

    outputs   |---- tile 0 ----|---- tile 1 ----|---- tile 2 ----|   a tile: chunks of inputs
    whole     |-- program 0 ---|-- program 1 ---|-- program 2 ---|
    split     |program 0|program 1|program 2|program 3|program 4 |   as even as chunks allow

The product is memory-bound, so every program should stream about as much, with many loads in
flight. A program passes its partial sum of a tile that it does not finish to the program that does.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

RING_BYTES = 200 * 1024  # of 227 KiB; the rest transposes answers and serves small kernels
PADDED_ROWS = (8, 16, 32, 64, 80, 96, 128, 144, 160, 192)  # columns of the tensor cores' product
MAX_ROWS = PADDED_ROWS[-1]  # of more, registers hold no sums of gates and ups
PARTIAL_VALUES = 6 << 20  # float32s of partial sums
TILES = ((64, False), (64, True), (128, True))  # half, pair
_LEAST_STAGES = 3
_LEAST_BLOCK_IN = 32
SWIZZLE_BYTES = 128
# Fitted to an H200, where the choice is nearly always within 2 % of the fastest. Bytes/s:
_READ = 4.75e12  # from memory
_PAIRED = 37e9  # per SM, if two SMs that share a port are busy
_LONE = 51e9  # per SM whose neighbour is idle
_NEAR = 110e12  # rows, if all programs are at the same columns and share cache reads
_FAR = 19e12  # rows, if they are not
_PARTS = 14e9  # storing and adding a partial sum
_MULTIPLY = 2.8e12  # multiplications/s per SM whose tiles have few rows
_MERGE_S = 0.55e-6  # to wait for a partial sum
_LATE_S = 0.3e-6  # added if shares are uneven: then some partial sums are late


@dataclass(frozen=True, slots=True, kw_only=True)
class FewRowsConfig:
    """Build options of the kernel (`half` to `split`), and how many programs share the work.

    A tile has `half` outputs or, with `pair`, twice as many (or `half` gates and ups); `half` 64 is
    one group of four warps, 128 two. A stage holds block_in columns of a tile and the rows.
    """

    half: int
    pair: bool = True
    block_in: int
    stages: int
    split: bool  # programs may share tiles
    programs: int

    @property
    def weights(self) -> int:
        """Weight rows per tile."""
        return self.half * (1 + self.pair)

    @property
    def warps(self) -> int:
        return self.half // 16

    def registers(self, rows_pad: int) -> int:
        """Registers per thread at launch; multiplying warps then take those that producer warps
        release.

        No more than needed: the next kernel's programs start beside these, or not at all.
        """
        if self.half == 64:
            return 96 if rows_pad <= 64 else 128 if rows_pad <= 160 else 136
        return 112 if rows_pad <= 64 else 136

    def partial_values(self, rows_pad: int) -> int:
        """float32s of the partial sums that programs store for other programs."""
        return self.programs * self.weights * rows_pad if self.split else 0


def pad_rows(rows: int) -> int:
    """The fewest padded rows. Asserted: 1 to MAX_ROWS rows."""
    assert 1 <= rows <= MAX_ROWS
    return next(size for size in PADDED_ROWS if size >= rows)


def parts_of(rows_pad: int) -> tuple[int, int]:
    """(first, rest) padded rows that are multiplied by themselves, as Triton's tensors are as wide
    as a power of two: 96 are 64 and 32. Rest 0: all are the first part."""
    first = 1 << (rows_pad.bit_length() - 1)
    return first, rows_pad - first


def stages_for(weights: int, block_in: int, rows_pad: int, ring_bytes: int = RING_BYTES) -> int:
    """How many stages of 16-bit values fit in a ring; `weights` rows of weights each."""
    return min(16, ring_bytes // (2 * block_in * (weights + rows_pad)))


def tiles_for(outer: int, config: FewRowsConfig, *, gated: bool) -> int:
    """Tiles for `outer` outputs (units, if gated)."""
    return -(-outer // (config.half if gated else config.weights))


def candidates(
    rows: int,
    outer: int,
    inner: int,
    *,
    gated: bool = False,
    cores: int = 132,
    ring_bytes: int = RING_BYTES,
) -> Iterator[FewRowsConfig]:
    """All reasonable configurations: `outer` outputs (units, if gated) of `inner` inputs."""
    rows_pad = pad_rows(rows)
    for half, pair in TILES:
        if (gated and not pair) or (half == 128 and rows_pad != 128):
            continue
        weights = half * (1 + pair)
        block_in = 128 if rows_pad <= 64 else 64
        stages = stages_for(weights, block_in, rows_pad, ring_bytes)
        while stages < _LEAST_STAGES and block_in > _LEAST_BLOCK_IN:
            block_in //= 2
            stages = stages_for(weights, block_in, rows_pad, ring_bytes)
        if stages < _LEAST_STAGES:
            continue
        n_tiles = -(-outer // (half if gated else weights))
        whole = FewRowsConfig(
            half=half, pair=pair, block_in=block_in, stages=stages, split=False,
            programs=-(-n_tiles // -(-n_tiles // cores)),
        )  # fmt: skip
        yield whole
        if half == 128:
            continue  # its partial sums are too large
        most = min(cores, n_tiles * -(-inner // block_in))
        for programs in sorted({most, most - most % n_tiles} - {0}):
            config = replace(whole, split=True, programs=programs)
            if n_tiles % programs and config.partial_values(rows_pad) <= PARTIAL_VALUES:
                yield config


def config_for(
    rows: int,
    outer: int,
    inner: int,
    *,
    gated: bool = False,
    cores: int = 132,
    ring_bytes: int = RING_BYTES,
    itemsize: int = 2,
    may_split: bool = True,
) -> FewRowsConfig:
    """The one that is expected to be fastest. Values of one byte are planned as half as many of
    two: as many bytes, in as long. Unless it `may_split`, programs share no tile: each output is
    summed in the order of the inputs."""
    if itemsize == 1:
        found = config_for(
            rows, outer, -(-inner // 2), gated=gated, cores=cores, ring_bytes=ring_bytes,
            may_split=may_split,
        )  # fmt: skip
        return replace(found, block_in=2 * found.block_in)
    every = candidates(rows, outer, inner, gated=gated, cores=cores, ring_bytes=ring_bytes)
    every = (config for config in every if may_split or not config.split)
    return min(every, key=lambda c: expected_s(c, rows, outer, inner, gated=gated, cores=cores))


def expected_s(
    config: FewRowsConfig, rows: int, outer: int, inner: int, *, gated: bool, cores: int
) -> float:
    """Expected seconds, without what all configurations have in common."""
    rows_pad = pad_rows(rows)
    n_tiles = tiles_for(outer, config, gated=gated)
    n_chunks = -(-inner // config.block_in)
    most = -(-n_tiles // config.programs) * n_chunks  # chunks of a program
    if config.split:
        most = -(-n_tiles * n_chunks // config.programs)
    even = not config.split or config.programs % n_tiles == 0
    chunk = 2 * config.weights * config.block_in
    # Half of a ring is in flight before the previous launch has ended.
    late = (most - min(config.stages, most) / 2) * chunk
    streamed_s = max(
        n_tiles * n_chunks * chunk / _READ,
        late / (_PAIRED if config.programs > cores // 2 else _LONE),
    )
    rows_s = 2 * n_tiles * n_chunks * config.block_in * rows_pad / (_NEAR if even else _FAR)
    multiplied_s = most * config.weights * config.block_in * max(rows_pad, 16) / _MULTIPLY
    merged_s = 0.0
    if config.split:
        merged_s = 4 * config.weights * rows_pad / _PARTS + _MERGE_S + (0 if even else _LATE_S)
    return max(streamed_s + rows_s, multiplied_s) + merged_s
