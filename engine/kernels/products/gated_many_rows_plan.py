"""How products of many rows are dealt to a card's multiprocessors: tiles, bands of them, programs.

bands     |- rows 0 to 11 tiles -|- 11 to 22 -|- ...     of a band, column after column
rounds    programs take as many whole columns of a band at a time as they can
"""

from dataclasses import dataclass
from functools import cache

TILE_ROWS = 128
TILE_UNITS = 128  # gates and ups
CHUNK = 64  # columns of a stage
_BAND = range(8, 17)  # rows of tiles: about as many as columns in a round, so that least is read
_BUSY = 0.8


@dataclass(frozen=True, slots=True)
class GatedManyRowsPlan:
    """`down` x `across` tiles, in bands of `band` rows of them, by `programs`."""

    down: int
    across: int
    band: int
    programs: int

    @property
    def rounds(self) -> int:
        return -(-self.down * self.across // self.programs)

    def fills(self, cores: int) -> bool:
        """Whether `cores` have something to do most of the time."""
        return self.down * self.across >= _BUSY * self.rounds * cores


@cache
def plan_gated_many_rows(rows: int, units: int, *, cores: int) -> GatedManyRowsPlan:
    """The fewest rounds, then the most even bands, then the highest ones.

    By no more programs than take as long: where power binds, idle multiprocessors speed up the
    others (measured on an H200: 128 or 112 of 132 are 2 % quicker).
    """
    down, across = -(-rows // TILE_ROWS), -(-units // TILE_UNITS)
    n_tiles = down * across
    plans = []
    for band in _BAND if down >= _BAND.start else (down,):
        most = min(max(cores // band, 1) * band, cores, n_tiles)
        enough = -(-n_tiles // -(-n_tiles // most))
        plans.append(GatedManyRowsPlan(down, across, band, min(-(-enough // band) * band, most)))
    return min(plans, key=lambda p: (p.rounds, -p.down % p.band, -p.band))
