"""How a product of a few rows is cut for a card: tiles of outputs, splits of sums, a ring's stages.

    outputs   |-- tile 0 --|-- tile 1 --|-- ...        an item: one tile, one split
    sums      |- split 0 -|- split 1 -|                program p: items p, p + programs, ...

Memory binds, so what counts is that every program streams about as much, with much of it asked for
ahead. A split costs a round of partial sums through the second-level cache.
"""

from dataclasses import dataclass, replace

RING_BYTES = 200 * 1024  # of 227 KiB: some for turning the answer, and for a small kernel beside
MAX_ROWS = 128
PARTIAL_VALUES = 6 << 20  # float32s of partial sums that a product may leave
_LEAST_STAGES = 3
_READ = 4.4e12  # bytes/s from memory, measured on an H200
_NEAR = 5.5e12  # bytes/s from the second-level cache, of all multiprocessors together
_MULTIPLY = 3.0e12  # multiplications/s of a multiprocessor, whose tiles' narrow side is 32 at least
_EAGER = 1.6  # so much more than its share may one multiprocessor take in
_MERGE_S = 1.5e-6  # until the last of a tile's programs knows that it is the last


@dataclass(frozen=True, slots=True, kw_only=True)
class SkinnyConfig:
    """How the kernel is built (`half` to `stages`) and how many programs share the items.

    A tile has half outputs or, with `pair`, twice as many (or half of them, gates and ups); `half`
    64 is one group of four warps, 128 two. A stage holds block_in columns of a tile and the rows.
    """

    half: int
    pair: bool = True
    block_in: int
    stages: int
    splits: int
    programs: int

    @property
    def weights(self) -> int:
        """Weight rows that a tile takes."""
        return self.half * (1 + self.pair)

    @property
    def warps(self) -> int:
        return self.half // 16

    def registers(self, rows_pad: int) -> int:
        """A thread's at launch; multiplying warps then take what the fetching ones give back.

        No more than they need: the next kernel's programs start beside these, or not at all.
        """
        if self.half == 64:
            return 96 if rows_pad <= 64 else 128
        return 112 if rows_pad <= 64 else 136

    def partial_values(self, n_tiles: int, rows_pad: int) -> int:
        """float32s of partial sums."""
        return n_tiles * self.splits * self.weights * rows_pad if self.splits > 1 else 0


def pad_rows(rows: int) -> int:
    """Rows of the tensor cores' narrow side."""
    return max(8, 1 << (rows - 1).bit_length())


def stages_for(weights: int, block_in: int, rows_pad: int, ring_bytes: int = RING_BYTES) -> int:
    """As many stages as a ring holds, of 16-bit values; `weights` rows of them."""
    return min(16, ring_bytes // (2 * block_in * (weights + rows_pad)))


def tiles_for(outer: int, config: SkinnyConfig, *, gated: bool) -> int:
    """Tiles of `outer` outputs (units, where gated)."""
    return -(-outer // (config.half if gated else config.weights))


def config_for(
    rows: int,
    outer: int,
    inner: int,
    *,
    gated: bool = False,
    cores: int = 132,
    ring_bytes: int = RING_BYTES,
) -> SkinnyConfig:
    """What should be quickest, by bytes: `outer` outputs (units, where gated) of `inner` inputs."""
    rows_pad = pad_rows(rows)
    best: tuple[float, SkinnyConfig] | None = None
    for half, pair in ((64, False), (64, True), (128, True)):
        if gated and not pair:
            continue
        block_in = 128 if half == 64 and rows_pad <= 16 else 64
        weights = half * (1 + pair)
        stages = stages_for(weights, block_in, rows_pad, ring_bytes)
        n_chunks = -(-inner // block_in)
        for splits in range(1, min(8, n_chunks) + 1):
            config = SkinnyConfig(
                half=half, pair=pair, block_in=block_in, stages=stages, splits=splits, programs=1
            )
            config = even(config, outer, gated=gated, cores=cores)
            n_tiles = tiles_for(outer, config, gated=gated)
            if stages < _LEAST_STAGES or config.partial_values(n_tiles, rows_pad) > PARTIAL_VALUES:
                continue
            rounds = -(-n_tiles * splits // config.programs)
            # Of the slowest program: its weights at its share of the memory, or what its
            # multiprocessor can take in.
            streamed = rounds * -(-n_chunks // splits) * 2 * weights * block_in
            taken = streamed * (1 + rows_pad / weights)
            time_s = max(
                config.programs * streamed / _READ,
                config.programs * taken / _NEAR,
                taken * cores / (_EAGER * _NEAR),
                streamed / 2 * max(rows_pad, 32) / _MULTIPLY,
            )
            if splits > 1:
                time_s += _MERGE_S + 8 * config.partial_values(n_tiles, rows_pad) / _NEAR
            if best is None or time_s < best[0]:
                best = time_s, config
    assert best is not None
    return best[1]


def even(config: SkinnyConfig, outer: int, *, gated: bool, cores: int) -> SkinnyConfig:
    """The same, by as few programs as take no longer than one for each of `cores`."""
    n_items = tiles_for(outer, config, gated=gated) * config.splits
    return replace(config, programs=-(-n_items // -(-n_items // cores)))
