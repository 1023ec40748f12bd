"""How gated products of many rows are dealt to multiprocessors."""

import pytest

from twolane.engine.kernels.products.gated_many_rows_plan import (
    TILE_ROWS,
    TILE_UNITS,
    plan_gated_many_rows,
)


@pytest.mark.parametrize("rows", [1, 128, 129, 600, 1024, 2048, 3000, 4096, 8191, 100_000])
@pytest.mark.parametrize("units", [8, 1000, 3584, 14336, 28_672])
@pytest.mark.parametrize("cores", [1, 7, 114, 132])
def test_tiles_cover_all_in_bands_that_programs_take_column_by_column(
    rows: int, units: int, cores: int
) -> None:
    plan = plan_gated_many_rows(rows, units, cores=cores)
    assert (plan.down - 1) * TILE_ROWS < rows <= plan.down * TILE_ROWS
    assert (plan.across - 1) * TILE_UNITS < units <= plan.across * TILE_UNITS
    assert 1 <= plan.band <= max(plan.down, 16)
    n_tiles = plan.down * plan.across
    assert 1 <= plan.programs <= min(cores, n_tiles)
    assert plan.programs % plan.band == 0 or plan.programs in (cores, n_tiles)


@pytest.mark.parametrize(
    ("rows", "band", "programs", "rounds"),
    [(512, 4, 112, 4), (1024, 8, 128, 7), (2048, 16, 128, 14), (8192, 11, 132, 55)],
)
def test_a_prefill_of_llama_takes_few_rounds_of_whole_columns(
    rows: int, band: int, programs: int, rounds: int
) -> None:
    plan = plan_gated_many_rows(rows, 14336, cores=132)
    assert (plan.band, plan.programs, plan.rounds) == (band, programs, rounds)
    assert plan.fills(132)


def test_few_tiles_leave_a_card_idle() -> None:
    assert not plan_gated_many_rows(1024, 136, cores=132).fills(132)
    assert not plan_gated_many_rows(512, 4352, cores=132).fills(
        132
    )  # 136 tiles: the second round is empty
